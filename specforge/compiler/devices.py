"""In: a device's name. Out: its table entry, an assumption of the plan. Dense bf16 rates, from data sheets."""

from __future__ import annotations

from specforge.plan import Device

_GIB = 2**30

DEVICES: dict[str, Device] = {
    d.name: d
    for d in (
        Device("cpu", 0, 0.0, 0.0),
        Device("A100-40GB", 40 * _GIB, 312.0, 1555.0),
        Device("A100-80GB", 80 * _GIB, 312.0, 2039.0),
        Device("H100", 80 * _GIB, 989.0, 3350.0),
        Device("H200", 140 * _GIB, 989.0, 4800.0),
        Device("B200", 180 * _GIB, 2250.0, 8000.0),
        Device("L40S", 48 * _GIB, 362.0, 864.0),
        Device("RTX-4090", 24 * _GIB, 165.0, 1008.0),
        Device("RTX-5090", 32 * _GIB, 209.0, 1792.0),
        Device("MI300X", 192 * _GIB, 1307.0, 5300.0),
    )
}
