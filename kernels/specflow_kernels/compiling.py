"""Ahead-of-time compilation of recorded launches for devices that are not here, and what the result needs of them."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specflow_kernels.launching import Launch, recording
from specflow_kernels.operator import Case, Operator, run

CAPABILITIES = (80, 90, 100)
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that one program may have, by capability."""
COMPILED_FROM = ("kernels.py", "*_kernels.py", "launching.py", "differentiable.py", "operator.py")
"""Files of kernels, of their tiles and arguments, and of the shapes they are compiled for."""
TYPES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64",
    torch.int8: "i8", torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    kernel: str
    case: str
    capability: int
    registers: int
    """Per thread, of 255."""
    shared: int
    """Bytes per program."""
    stack: int
    """Bytes per thread that did not fit in registers: 0 where nothing is spilled."""
    warps: int
    instructions: str
    """Tensor-core instructions of the code, or a dash."""

    @property
    def problems(self) -> list[str]:
        limit = SHARED_LIMIT[self.capability]
        name = f"{self.kernel} ({self.case}) on sm_{self.capability}"
        found = []
        if self.stack:
            found.append(f"{name} spills {self.stack} bytes per thread, expected none: use smaller tiles or more warps")
        if self.shared > limit:
            found.append(
                f"{name} needs {self.shared} bytes of shared memory, the device has {limit}: use smaller tiles"
            )
        return found


def launches_of(operator: Operator, case: Case, *, capability: int) -> list[Launch]:
    """What the operator launches for these inputs on that device, forward and backward; nothing is computed."""
    inputs = case.make(torch.device("meta"))
    with recording(capability) as found:
        run(operator.kernel, inputs, differentiable=operator.differentiable)
    return _distinct(found.launches)


def compile_launch(launch: Launch, *, case: str, capability: int) -> Compiled:
    """Compile for ``sm_<capability>``, specialised as a launch of these arguments would be."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = _specialised(launch)
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    options: dict[str, Any] = {"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": True}
    if launch.registers is not None:
        options["maxnreg"] = launch.registers
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, stack = _resources(made.asm["cubin"])
    return Compiled(
        kernel=launch.kernel.__name__,
        case=case,
        capability=capability,
        registers=registers,
        shared=made.metadata.shared,
        stack=stack,
        warps=launch.warps,
        instructions=_tensor_cores(made.asm["ptx"]),
    )


def sources_digest() -> str:
    """Changes with any line that may change what is compiled, so that a table can tell whether it is still theirs."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for pattern in COMPILED_FROM for path in root.rglob(pattern)):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _specialised(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int, ...], Any]]:
    """Signature, constants and attributes, by the rules of a launch: ones are constants, multiples of 16 are noted."""
    signature: dict[str, str] = {}
    constants = dict(launch.constants)
    attributes: dict[tuple[int, ...], Any] = {}
    names = launch.kernel.arg_names
    for place, (name, value) in enumerate(zip(names, launch.arguments, strict=False)):
        if isinstance(value, Tensor):
            signature[name] = f"*{TYPES[value.dtype]}"
            attributes[(place,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1:
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                attributes[(place,)] = [["tt.divisibility", 16]]
    for name in names[len(launch.arguments) :]:
        signature[name] = "constexpr"
    return signature, constants, attributes


def _distinct(launches: Iterable[Launch]) -> list[Launch]:
    """One launch of every specialisation."""
    found: dict[tuple[str, int, int, str], Launch] = {}
    for launch in launches:
        key = (launch.kernel.__name__, launch.warps, launch.stages, repr(_specialised(launch)))
        found.setdefault(key, launch)
    return list(found.values())


def _resources(cubin: bytes) -> tuple[int, int]:
    """``(registers, stack bytes)`` per thread, as the assembler states them in the code object."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [_cuobjdump(), "-res-usage", file.name], capture_output=True, text=True, timeout=60, check=False
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    if found is None:
        raise RuntimeError(f"cuobjdump states no resource usage: {(done.stdout + done.stderr)[-500:]}")
    return int(found[1]), int(found[2])


@cache
def _cuobjdump() -> str:
    """The tool that comes with triton."""
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump")


def _tensor_cores(ptx: str) -> str:
    kinds = {name for name in ("mma.sync", "wgmma", "tcgen05.mma") if name in ptx}
    return ", ".join(sorted(kinds)) or "-"


def compile_all(
    operators: Iterable[Operator], *, capabilities: Iterable[int] = CAPABILITIES
) -> Iterator[tuple[str, Compiled]]:
    """Operator name and result of every kernel, case, dtype and capability."""
    capabilities = tuple(capabilities)
    for operator in operators:
        for case in operator.variants:
            for capability in capabilities:
                for launch in launches_of(operator, case, capability=capability):
                    yield operator.name, compile_launch(launch, case=case.name, capability=capability)
