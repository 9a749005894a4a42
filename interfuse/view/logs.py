"""INTERFUSE_LOGS: decisions as log lines, by topic. One logger per topic (`interfuse.sharding`, …), to stderr where the topic was asked for."""

from __future__ import annotations

import logging

from interfuse.pipeline import Plan
from interfuse.settings import settings
from interfuse.view.report import Report, form_text


def _logger(topic: str) -> logging.Logger | None:
    """None where nobody listens."""
    logger = logging.getLogger(f"interfuse.{topic}")
    if topic in settings().logs and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"[interfuse {topic}] %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    return logger if logger.isEnabledFor(logging.INFO) else None


def log_plan(plan: Plan, rank: int) -> None:
    """What was decided for a plan that was just compiled."""
    report = Report(plan, rank)
    if log := _logger("sharding"):
        log.info("plan %s\n%s", plan.key[:12], form_text("placed", plan))
        for line in report.gathered:
            log.info("%s", line)
    if log := _logger("comm"):
        for c in report.collectives:
            log.info("%s of %s over %s, ranks %s: %s bytes", c.kind, c.tensor, c.axis, list(c.team), c.bytes)
    if log := _logger("fusion"):
        log.info("plan %s\n%s%s", plan.key[:12], form_text("segmented", plan), "".join(f"  {r}\n" for r in report.refusals))
    if log := _logger("kernel"):
        for name, text in plan.emitted.sources.items():
            log.info("%s of plan %s\n%s", name, plan.key[:12], text)


def log_lookup(key: str, hit: bool) -> None:
    """Whether a plan was there already."""
    if log := _logger("cache"):
        log.info("plan %s: %s", key[:12], "found" if hit else "compiled")
