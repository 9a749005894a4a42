"""Every mistake has a class of its own, and every class says what, where, which facts disagree, and what to do.

All classes derive from `InterfuseError`; each also derives from the built-in exception that users of nvFuser and PyTorch would catch for the
same mistake. A message is written once, where the mistake is found; nothing here builds text.
"""

from __future__ import annotations


class InterfuseError(Exception):
    """Base of everything that Interfuse raises on purpose."""


# ---- defining a program ---------------------------------------------------------------------------------------------------------------------


class DefinitionError(InterfuseError, RuntimeError):
    """A program is built wrongly: an op on a finished definition, an output that depends on nothing, an empty program."""


class DefinitionFinished(DefinitionError):
    """An op or an input was added to a definition that is finished."""


class OutputDependsOnNothing(DefinitionError):
    """An output can be reached from no input and from no factory op."""


class UndefinedProgram(InterfuseError, NotImplementedError):
    """A definition without outputs was executed."""


class ArgumentTypeError(InterfuseError, TypeError):
    """An argument has the wrong Python type (a float where a size is due)."""


class DtypeError(InterfuseError, RuntimeError):
    """An op does not accept this dtype, or two dtypes that must agree do not."""


class ShapeError(InterfuseError, RuntimeError):
    """Shapes do not fit an op."""


class ShapesDoNotBroadcast(ShapeError):
    """Two dims that must be equal, or one of them 1, are neither."""


class ReshapeCountError(ShapeError):
    """A reshape would change the number of elements."""


class DimOutOfRange(ShapeError, IndexError):
    """A dim index lies outside the tensor."""


# ---- placing it -----------------------------------------------------------------------------------------------------------------------------


class PlacementError(InterfuseError, RuntimeError):
    """A placement that means nothing."""


class MeshError(PlacementError, ValueError):
    """A mesh with duplicate or negative ranks, or with ranks outside the world."""


class PlacementDimError(PlacementError, IndexError):
    """A placement names a dim or a loop that the tensor does not have."""


class AxisUsedTwice(PlacementError):
    """One mesh axis splits two dims of one tensor."""


class SplitFactorError(PlacementError, ValueError):
    """A split's factor is not the size of the mesh axis that it is parallelised over."""


class NoSuchPlacement(PlacementError):
    """A loop transform that has no placement."""


class UnsupportedPlacement(PlacementError, NotImplementedError):
    """A placement that the value can say and the compiler cannot carry out yet."""


class UnaskedReplication(PlacementError):
    """`strict=True`, and a tensor would be gathered whole although nobody asked for it."""


# ---- calling it -----------------------------------------------------------------------------------------------------------------------------


class InputError(InterfuseError, RuntimeError):
    """Inputs of a call do not fit the program."""


class InputCountError(InputError):
    """Wrong number of inputs."""


class InputDtypeError(InputError, TypeError):
    """An input has another dtype than it was defined with."""


class InputRankError(InputError):
    """An input has another number of dims than it was defined with."""


class InputShapeError(InputError):
    """A local or global input shape contradicts the definition or the placement."""


class InputDeviceError(InputError):
    """Inputs lie on a device that the program does not run on, or on several."""


class UnevenSizeUnknown(InputError):
    """A symbolic split dim has uneven local sizes, and nobody gave the global size."""


class NotOnThisDevice(InterfuseError, NotImplementedError):
    """An op that needs arithmetic which the device of the plan does not have."""


class OptionError(InterfuseError, ValueError, RuntimeError):
    """An unknown option; the message names the nearest known one."""


class NoScheduler(InterfuseError, RuntimeError):
    """A call's options leave a part of the program without anything that could run it."""


class NotCompiled(InterfuseError, RuntimeError):
    """A KernelExecutor ran before it had compiled anything."""


class ValidationError(InterfuseError, AssertionError):
    """Results differ from their reference by more than the tolerance."""


class NoReproInputs(InterfuseError, AssertionError):
    """The script of the last call was asked for, and no call kept its inputs."""


class CpuTensorError(InterfuseError, ValueError, RuntimeError):
    """A CPU tensor with dims describes an input of a program that runs on a GPU."""


class ExecutorsMixed(InterfuseError, AssertionError):
    """A definition that runs under its user's schedule was run under the compiler's, or the other way round."""


# ---- running it -----------------------------------------------------------------------------------------------------------------------------


class RankFailed(InterfuseError, RuntimeError):
    """Another rank failed, died, went elsewhere, or did not answer in time.

    Attributes: `rank` (int or None if unknown), `original` (text of the other rank's error), `collective`, `tensor`.
    """

    def __init__(self, message: str, *, rank: int | None = None, original: str = "", collective: str = "", tensor: str = "") -> None:
        super().__init__(message)
        self.rank, self.original, self.collective, self.tensor = rank, original, collective, tensor


class PlansDiffer(RankFailed):
    """Two ranks compiled, or called, different programs."""


class ReplicasDiffer(InterfuseError, RuntimeError):
    """simulate: ranks that should hold the same values do not."""


class BuildError(InterfuseError, RuntimeError):
    """The system compiler refused an emitted kernel."""


class FormError(InterfuseError, AssertionError):
    """A form broke one of its promises: a defect of the compiler, named by pass and promise."""
