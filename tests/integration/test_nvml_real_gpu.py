"""NvmlSource before a real driver.

Where libnvidia-ml.so.1 cannot be loaded this file holds no tests at all, rather than tests that
are skipped on every machine without a GPU. To run it, name it: `make test-gpu`, or pytest with
this path. On a machine without the library that fails, since nothing was collected.
"""

from __future__ import annotations

import ctypes
import os

from ext_authz.clock import SystemClock
from ext_authz.telemetry.sources.nvml.source import NvmlSettings, NvmlSource


def has_driver() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


__test__ = has_driver()


async def test_every_card_tells_the_essentials() -> None:
    """Two polls: every device has a UUID, memory and heat that can be, and the date it was asked
    at; a whole card also has a clock and power."""
    source = NvmlSource(NvmlSettings(timeout_s=10.0, processes=True))
    try:
        for now in (1.0, 2.0):
            report = await source.poll(now)
            assert report.devices
            for device in report.devices:
                assert device.device.startswith(("GPU-", "MIG-"))
                assert (device.at_s, device.source, device.lost) == (now, "nvml", False)
                assert device.memory_total_bytes is not None
                assert device.memory_total_bytes > 2**30
                assert device.memory_used_bytes is not None
                assert 0 <= device.memory_used_bytes <= device.memory_total_bytes
                assert device.temperature_c is not None
                assert 0 < device.temperature_c < 110
                if device.device.startswith("GPU-"):
                    assert device.sm_clock_mhz is not None
                    assert device.power_w is not None
                    assert 0 < device.power_w < 2000
                    assert device.throttled is not None
        assert "device" not in report.missing
        assert report.dropped == {}
        assert source.device_of(os.getpid()) is None
    finally:
        await source.close()


async def test_a_poll_is_cheap_enough_for_a_second() -> None:
    """After the first, which loads and starts the library, a pass takes a fraction of the
    interval it is made for."""
    source = NvmlSource(NvmlSettings(timeout_s=10.0))
    try:
        await source.poll(0.0)
        clock = SystemClock()
        started_s = clock.now()
        for now in range(1, 11):
            await source.poll(float(now))
        each_s = (clock.now() - started_s) / 10
        print(f"one pass over the cards takes {each_s * 1000:.2f} ms")
        assert each_s < 0.25
    finally:
        await source.close()
