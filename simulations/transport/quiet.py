"""Settings of Flower, Ray and other libraries that must be set before they start."""

from __future__ import annotations

import logging
import os
import sys

#: Set before any of them is imported: a privacy tool contacts nobody, not even for updates.
QUIET = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",
}


def hush_flower(level: int) -> None:
    """Make Flower log only this level or above, in colours on a terminal only, and without colours under NO_COLOR."""
    from flwr.common.logger import update_console_handler

    logging.getLogger("flwr").setLevel(level)
    update_console_handler(colored=sys.stderr.isatty() and not os.environ.get("NO_COLOR"))
