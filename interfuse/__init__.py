"""Interfuse: one global tensor program, a few placements on a mesh of devices, fast and correct programs for every rank."""

from interfuse.frontend.definition import FusionDefinition
from interfuse.frontend.domain import ParallelType
from interfuse.frontend.handles import TensorView
from interfuse.ir.dtypes import DataType
from interfuse.view.report import reports

__version__ = "0.1.0"
__all__ = ["DataType", "FusionDefinition", "ParallelType", "TensorView", "__version__", "reports"]
