"""A plan as files, one per form, so that two runs or two ranks can be compared with `diff`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from interfuse.pipeline import Plan
from interfuse.view.report import form_text

_FORMS = ("traced", "placed", "local", "segmented", "scheduled", "tiled")


def dump(plan: Plan, rank: int, folder: Path | str) -> Path:
    """Writes `folder`/rank<rank>/<plan12>/: 1-traced.txt … 6-tiled.txt, 7-host.py, and <segment>.cpp for every kernel. Gives that folder.

    Each file is written under a temporary name and renamed, so a reader never sees half of one, and ranks may share `folder`.
    """
    place = Path(folder) / f"rank{rank}" / plan.key[:12]
    place.mkdir(parents=True, exist_ok=True)
    for number, form in enumerate(_FORMS, 1):
        _write(place / f"{number}-{form}.txt", form_text(form, plan))
    _write(place / f"{len(_FORMS) + 1}-host.py", plan.emitted.host)
    for name, text in plan.emitted.sources.items():
        _write(place / f"{name}.cpp", text)
    return place


def _write(path: Path, text: str) -> None:
    handle, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(made, path)
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise
