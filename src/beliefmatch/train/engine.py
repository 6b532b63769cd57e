"""Devices, processes and precision: of a training by lightning-fabric, of predictions by torch alone."""

import faulthandler
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor, distributed, nn

from beliefmatch._environment import needs
from beliefmatch._validate import fail
from beliefmatch.train.config import EngineConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = [
    "Engine",
    "FabricPrecision",
    "Inference",
    "device_type",
    "has_fast_bf16",
    "local_processes",
    "resolve_precision",
]

FabricPrecision = Literal["32-true", "bf16-mixed", "16-mixed"]
Result = TypeVar("Result")


class Inference:
    """A device and a precision to predict with, in this process.

    It needs torch alone: lightning-fabric takes seconds to import.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        device = device_type(self.config.accelerator)
        self.precision: FabricPrecision = resolve_precision(self.config.precision, device)
        self._device = torch.empty(0, device=device).device  # with its number

    @property
    def device(self) -> torch.device:
        """Device of this process."""
        return self._device

    @property
    def rank(self) -> int:
        """Number of this process among all, from 0."""
        return 0

    @property
    def world_size(self) -> int:
        """Number of processes on all machines."""
        return 1

    def gather(self, rows: Tensor, lengths: Sequence[int]) -> Tensor:
        """The rows of all processes, of which each has as many as `lengths` says."""
        return rows

    @contextmanager
    def running(self) -> Iterator[None]:
        """Set the number of threads and cuDNN's benchmark mode inside the block."""
        threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        torch.backends.cudnn.benchmark = self.device.type == "cuda"
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.backends.cudnn.benchmark = benchmark

    def prepare(self, network: nn.Module) -> nn.Module:
        """The network on the device, in the channels-last layout.

        On a CPU, networks with convolutions of fewer than 16 output channels keep the default layout: torch's
        channels-last backward pass was seen to write out of bounds there.
        """
        network = network.to(self.device)
        is_narrow = any(isinstance(m, nn.Conv2d) and m.out_channels < 16 for m in network.modules())
        if self.device.type == "cpu" and is_narrow:
            if not getattr(network, _DEFAULT_LAYOUT, False):
                network.register_forward_pre_hook(_inputs_in_default_layout)
                setattr(network, _DEFAULT_LAYOUT, True)
            return network
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in this precision inside the block."""
        lower = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(self.precision)
        return nullcontext() if lower is None else torch.autocast(self.device.type, dtype=lower)


class Engine(Inference):
    """A launched Fabric with the operations that the loop needs.

    One process works alone. More are started by this class (`devices`), each running the same script again,
    or by `torchrun`, `fabric run` or SLURM, whose environment variables then give their number.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        super().__init__(config)
        self.fabric = _make_fabric(self.config, self._device.type, self.precision)
        _join_restarted(self.fabric.device.type)
        if not int(os.environ.get("LT_CLI_USED", "0")):  # `fabric run` has launched already
            self.fabric.launch()

    @property
    def device(self) -> torch.device:
        """Device of this process."""
        return self.fabric.device

    @property
    def rank(self) -> int:
        """Number of this process among all, from 0."""
        return self.fabric.global_rank

    @property
    def world_size(self) -> int:
        """Number of processes on all machines."""
        return self.fabric.world_size

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes files and reports progress for all."""
        return self.rank == 0

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """Scaler of the loss, which keeps float16 gradients in range; None in other precisions."""
        return getattr(self.fabric.strategy.precision, "scaler", None)

    def prepare(self, network: nn.Module) -> nn.Module:
        """As for predictions, with batch normalisation over all GPUs."""
        if self.device.type == "cuda" and self.world_size > 1:
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        return super().prepare(network)

    def setup(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """The network and its optimiser wrapped by Fabric; all processes start from the same weights."""
        callee = torch.compile(network) if self.config.compile else network
        return self.fabric.setup(callee, optimizer)  # type: ignore[return-value]

    def sum_over_processes(self, numbers: Sequence[float]) -> list[float]:
        """The sum of each number over all processes."""
        if self.world_size == 1:
            return list(numbers)
        summed = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        distributed.all_reduce(summed)
        return summed.tolist()

    def gather(self, rows: Tensor, lengths: Sequence[int]) -> Tensor:
        """The rows of all processes, concatenated; `lengths` has the number of rows of each process."""
        if self.world_size == 1:
            return rows
        padded = rows.new_zeros((max(lengths), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in lengths]
        distributed.all_gather(parts, padded)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    def on_main_process(self, function: Callable[[], Result]) -> Result:
        """Call a function in the main process; all processes get its result, or raise its exception."""
        if self.world_size == 1:
            return function()
        result, error = None, None
        if self.is_main_process:
            try:
                result = function()
            except Exception as raised:
                error = raised
        result, error = self.fabric.broadcast((result, error))
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def broadcast_buffers(self, network: nn.Module) -> None:
        """Copy the main process's buffers to all; each process has normalised by its own examples."""
        if self.world_size > 1:
            for buffer in network.buffers():
                distributed.broadcast(buffer, 0)

    def describe(self, network: nn.Module) -> dict[str, Any]:
        """Facts for a record, of this engine and a network that it has prepared."""
        is_cuda = self.device.type == "cuda"
        return {
            "device": torch.cuda.get_device_name(self.device) if is_cuda else self.device.type,
            "processes": self.world_size,
            "precision": self.precision,
            "layout": "contiguous" if getattr(network, _DEFAULT_LAYOUT, False) else "channels_last",
            "compiled": self.config.compile,
            "threads": self.config.threads or torch.get_num_threads(),
        }


_DEFAULT_LAYOUT = "_beliefmatch_default_layout"


def _inputs_in_default_layout(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.contiguous() if isinstance(one, Tensor) else one for one in inputs)


def _make_fabric(config: EngineConfig, device_type: str, precision: FabricPrecision) -> "Fabric":
    with needs("lightning-fabric", extra="train", caller="Engine"):
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.precision import MixedPrecision
        from lightning_fabric.strategies.ddp import DDPStrategy

    devices, nodes = _devices_and_nodes(config)
    several = nodes > 1 or local_processes(config) > 1
    plugins: list[Any] = []
    if precision != "32-true":
        # made here, because Fabric would turn float16 on a CPU into bfloat16
        scaler = torch.amp.GradScaler(device_type) if precision == "16-mixed" else None
        plugins = [MixedPrecision(precision, device_type, scaler)]
    strategy = DDPStrategy(gradient_as_bucket_view=True) if several else "auto"
    return Fabric(
        accelerator=device_type, devices=devices, num_nodes=nodes, strategy=strategy, plugins=plugins
    )


def _join_restarted(device_type: str) -> None:
    """Join the process group of a restart by `torchrun` under a key of this attempt.

    The store of `torchrun` outlives the processes, and torch looks up addresses there without the number of
    the attempt. A process that starts early may find the address of one that has died, and fails.
    """
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if attempt == 0 or not shared or distributed.is_initialized():
        return
    world_size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.PrefixStore(  # pyright: ignore[reportPrivateImportUsage]
        f"attempt-{attempt}",
        distributed.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            *address, world_size=world_size, is_master=False
        ),
    )
    backend = "nccl" if device_type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def _devices_and_nodes(config: EngineConfig) -> tuple[str, int]:
    """Devices per machine and number of machines; the environment variables of `torchrun` take precedence."""
    local, world = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    if "TORCHELASTIC_RUN_ID" in os.environ and local and world:
        return local, int(world) // int(local)
    return config.devices, config.nodes


def device_type(accelerator: str) -> str:
    """The device type, resolved where it is "auto"; ValueError if this machine has no such device."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    present = [name for name, is_present in available.items() if is_present]
    if accelerator == "auto":
        return present[0]
    if accelerator not in present:
        expected = f"available on this machine ({', '.join(present)})"
        raise fail("Engine", f"`accelerator` must be {expected}, got {accelerator!r}.")
    return accelerator


def local_processes(config: EngineConfig) -> int:
    """Number of processes on this machine; ValueError if it has not enough devices for them."""
    device, (devices, _) = device_type(config.accelerator), _devices_and_nodes(config)
    if devices == "auto":
        return torch.cuda.device_count() if device == "cuda" else 1
    # two processes are allowed on any CPU, so that distributed training can be tried on one core
    most = {"cuda": torch.cuda.device_count(), "mps": 1, "cpu": max(2, os.cpu_count() or 1)}[device]
    if int(devices) > most and "TORCHELASTIC_RUN_ID" not in os.environ:
        what = "logical cores" if device == "cpu" else f"{device} devices"
        raise fail("Engine", f"`devices` must be at most {most}, the {what} of this machine, got {devices}.")
    return int(devices)


# Precision. On a CPU, bfloat16 is faster than float32 only with matrix tiles (AMX); without them it was
# measured to be slower. Some virtual machines report tiles in the CPU flags but do not configure them; torch
# then dies of an illegal instruction at the first linear layer in bfloat16, which no exception handler can
# catch. So where the flags report tiles, a forked child process multiplies two matrices first. If it dies,
# "auto" means float32, and "bf16" limits oneDNN, torch's CPU library, to instructions without tiles.

_FABRIC_NAMES: dict[str, FabricPrecision] = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}
_TILES_FLAG = "amx_bf16"
_ONEDNN_LIMIT, _WITHOUT_TILES = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
_CHILD_TIMEOUT_SECONDS = 10.0


def resolve_precision(precision: str, device_type: str) -> FabricPrecision:
    """Fabric's name of a precision; "auto" is bf16 where the hardware is faster with it, else float32."""
    if precision == "auto":
        return "bf16-mixed" if has_fast_bf16(device_type) else "32-true"
    if precision == "bf16" and device_type == "cpu" and not _bf16_is_safe():
        raise fail(
            "Engine",
            "`precision` must not be bf16 on this processor, which reports matrix tiles that do not work; "
            f"set {_ONEDNN_LIMIT}={_WITHOUT_TILES} in the environment, or choose 32.",
        )
    return _FABRIC_NAMES[precision]


def has_fast_bf16(device_type: str) -> bool:
    """Whether bfloat16 is faster than float32."""
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device_type == "cpu" and _tiles_work()


@cache
def _tiles_work() -> bool:
    allowed = "AMX" in os.environ.get(_ONEDNN_LIMIT, "AMX")
    return _TILES_FLAG in _cpu_flags() and allowed and _child_survives_bf16()


@cache
def _bf16_is_safe() -> bool:
    """Whether there are no tiles, or they work, or oneDNN can be limited to instructions without them."""
    if _TILES_FLAG not in _cpu_flags() or _tiles_work():
        return True
    if _ONEDNN_LIMIT in os.environ:
        return _child_survives_bf16()
    os.environ[_ONEDNN_LIMIT] = _WITHOUT_TILES
    if _child_survives_bf16():
        return True
    del os.environ[_ONEDNN_LIMIT]  # set too late: oneDNN has already detected the processor
    return False


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return set()
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def _child_survives_bf16() -> bool:
    """Whether a forked child multiplies bfloat16 matrices correctly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forks with threads: the child starts none
        child = os.fork()
    if child == 0:
        _multiply_and_exit()
    end = time.monotonic() + _CHILD_TIMEOUT_SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.001)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def _multiply_and_exit() -> None:
    try:
        faulthandler.disable()  # the death of this process is an answer, not a fault to report
        torch.set_num_threads(1)
        ones = torch.ones(64, 64, dtype=torch.bfloat16)
        is_correct = bool((torch.nn.functional.linear(ones, ones) == 64).all())
        os._exit(0 if is_correct else 1)
    finally:
        os._exit(1)
