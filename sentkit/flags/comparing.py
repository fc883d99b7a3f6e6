"""The device that compares vectors: --device of the commands without a model."""

from typing import TYPE_CHECKING

from sentkit.flags.rules import refuse_together
from sentkit.process import may_have_gpu

if TYPE_CHECKING:
    from sentkit.metrics.device import Device


def find_device(name: str) -> "Device | None":
    """The device that compares vectors; None for the CPU, without an import of torch."""
    if name == "cpu" or (name == "auto" and not may_have_gpu()):
        return None
    from sentkit.metrics.device import Device
    from sentkit.model.transformer.device import pick_device

    device = pick_device(name)
    if name == "auto" and device.type == "cpu":
        return None
    return Device(device)


def check_device_of_metric(device: str, metric: str) -> None:
    """Refuse another device than the CPU for the metrics that only the CPU compares."""
    refuse_together(
        {"--device": device != "cpu"},
        {"--metric euclidean or manhattan": metric in ("euclidean", "manhattan")},
        ", which the CPU compares",
    )
