"""Which numbers to compute with, by the hardware.

On a CPU bfloat16 pays where there are matrix tiles (AMX); without them it was measured to be slower than
float32. Some virtual machines announce tiles without saying how large they are. torch then ends the process
with "illegal instruction" at the first linear layer in bfloat16. So where there are tiles, a child process
tries them; if it dies, float32 it is, or oneDNN, which torch computes with, is told to do without tiles.
"""

import faulthandler
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
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

__all__ = ["Engine", "Mixed", "device_type", "has_fast_bf16", "resolved"]

Mixed = Literal["32-true", "bf16-mixed", "16-mixed"]
_NAMES: dict[str, Mixed] = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}
_TILES = "amx_bf16"
_LIMIT, _WITHOUT_TILES = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
_PATIENCE_SECONDS = 10.0


def resolved(precision: str, device_type: str) -> Mixed:
    """Lightning's name of a precision; "auto" is bf16 where the hardware is faster with it, else float32."""
    if precision == "auto":
        return "bf16-mixed" if has_fast_bf16(device_type) else "32-true"
    if precision == "bf16" and device_type == "cpu" and not _bf16_is_safe():
        raise fail(
            "Engine",
            "`precision` bf16 would end this process, whose processor announces tiles that it does not have; "
            f"set {_LIMIT}={_WITHOUT_TILES} in the environment, or take 32.",
        )
    return _NAMES[precision]


def has_fast_bf16(device_type: str) -> bool:
    """Whether bfloat16 is faster than float32."""
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device_type == "cpu" and _tiles_work()


@cache
def _tiles_work() -> bool:
    return _TILES in _cpu_flags() and "AMX" in os.environ.get(_LIMIT, "AMX") and _survives()


@cache
def _bf16_is_safe() -> bool:
    """Whether there are no tiles, or they work, or can be done without."""
    return _TILES not in _cpu_flags() or _tiles_work() or _survives_without_tiles()


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return set()
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def _survives_without_tiles() -> bool:
    """Whether a limit helps. It does not where torch has looked at the processor before."""
    if _LIMIT in os.environ:  # somebody has seen to it
        return _survives()
    os.environ[_LIMIT] = _WITHOUT_TILES
    if not _survives():
        del os.environ[_LIMIT]
    return _LIMIT in os.environ


def _survives() -> bool:
    """Whether a child that multiplies matrices of bfloat16 lives to tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the child starts none
        child = os.fork()
    if child == 0:
        _multiply_and_exit()
    end = time.monotonic() + _PATIENCE_SECONDS
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
        faulthandler.disable()  # a death here is an answer, not a fault
        torch.set_num_threads(1)
        ones = torch.ones(64, 64, dtype=torch.bfloat16)
        right = bool((torch.nn.functional.linear(ones, ones) == 64).all())
        os._exit(0 if right else 1)
    finally:
        os._exit(1)


Result = TypeVar("Result")


class Engine:
    """A launched Fabric and what the loop asks of it.

    One process works alone. More are started by this class (`devices`), each running the same script again,
    or by `torchrun`, `fabric run` or SLURM, whose environment variables then say how many there are.
    """

    def __init__(self, settings: EngineConfig | None = None) -> None:
        self.settings = settings or EngineConfig()
        device = device_type(self.settings.accelerator)
        self.precision = resolved(self.settings.precision, device)
        self.fabric = _fabric(self.settings, device, self.precision)
        _join_restarted(self.fabric.device.type)
        if not int(os.environ.get("LT_CLI_USED", "0")):  # `fabric run` has launched already
            self.fabric.launch()

    @property
    def device(self) -> torch.device:
        """Of this process."""
        return self.fabric.device

    @property
    def rank(self) -> int:
        """Number of this process among all, from 0."""
        return self.fabric.global_rank

    @property
    def world(self) -> int:
        """Processes on all machines."""
        return self.fabric.world_size

    @property
    def is_first(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """Of the loss, which keeps gradients within the range of float16."""
        return getattr(self.fabric.strategy.precision, "scaler", None)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Set threads and the choice of convolutions for the time of the block."""
        threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
        if self.settings.threads is not None:
            torch.set_num_threads(self.settings.threads)
        torch.backends.cudnn.benchmark = self.device.type == "cuda"
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.backends.cudnn.benchmark = benchmark

    def prepared(self, network: nn.Module) -> nn.Module:
        """The network itself, on the device, in the channels-last layout, normalising over all GPUs.

        Networks with convolutions of fewer than 16 channels stay in the default layout on a CPU: torch's
        backward pass in the other one was seen to write beyond its memory there.
        """
        if self.device.type == "cuda" and self.world > 1:
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        network = self.fabric.to_device(network)
        if self.device.type == "cpu" and _is_narrow(network):
            if not getattr(network, _PLAIN_LAYOUT, False):
                network.register_forward_pre_hook(_in_default_layout)
                setattr(network, _PLAIN_LAYOUT, True)
            return network
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def setup(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """The network and its optimiser behind Fabric; all processes start from the first one's weights."""
        callee = torch.compile(network) if self.settings.compile else network
        return self.fabric.setup(callee, optimizer)  # type: ignore[return-value]

    def autocast(self) -> AbstractContextManager[Any]:
        """Computes in the engine's precision inside the block."""
        return self.fabric.autocast()

    def total(self, numbers: Sequence[float]) -> list[float]:
        """The sum of each number over all processes."""
        if self.world == 1:
            return list(numbers)
        summed = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        distributed.all_reduce(summed)
        return summed.tolist()

    def gathered(self, rows: Tensor, lengths: Sequence[int]) -> Tensor:
        """The rows of all processes, of which each has as many as `lengths` says, one after the other."""
        if self.world == 1:
            return rows
        padded = rows.new_zeros((max(lengths), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in lengths]
        distributed.all_gather(parts, padded)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    def once(self, function: Callable[[], Result]) -> Result:
        """Call a function in the first process; all get its result, or raise its exception."""
        if self.world == 1:
            return function()
        result, error = None, None
        if self.is_first:
            try:
                result = function()
            except Exception as raised:
                error = raised
        result, error = self.fabric.broadcast((result, error))
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def share_buffers(self, network: nn.Module) -> None:
        """Give all processes the first one's buffers; each has normalised by its own examples."""
        if self.world > 1:
            for buffer in network.buffers():
                distributed.broadcast(buffer, 0)

    def describe(self) -> dict[str, Any]:
        """Facts for a record."""
        return {
            "device": self._device_name(),
            "processes": self.world,
            "precision": self.precision,
            "layout": "channels_last",
            "compiled": self.settings.compile,
            "threads": self.settings.threads or torch.get_num_threads(),
        }

    def _device_name(self) -> str:
        is_cuda = self.device.type == "cuda"
        return torch.cuda.get_device_name(self.device) if is_cuda else self.device.type

    def close(self) -> None:
        """Part from the other processes."""
        if self.world > 1 and distributed.is_initialized():
            distributed.destroy_process_group()


_NARROW = 16  # channels
_PLAIN_LAYOUT = "_beliefmatch_plain_layout"


def _is_narrow(network: nn.Module) -> bool:
    """Whether a convolution gives fewer channels than torch's kernels take in the channels-last layout."""
    return any(isinstance(m, nn.Conv2d) and m.out_channels < _NARROW for m in network.modules())


def _in_default_layout(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.contiguous() if isinstance(one, Tensor) else one for one in inputs)


def _fabric(settings: EngineConfig, device_type: str, precision: Mixed) -> "Fabric":
    with needs("lightning-fabric", extra="train", caller="Engine"):
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.precision import MixedPrecision
        from lightning_fabric.strategies.ddp import DDPStrategy

    devices, nodes = _processes(settings)
    several = nodes > 1 or processes_here(settings) > 1
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
    """Meet the other processes of a restart by `torchrun` under a name of its own.

    Its store outlives the processes, and torch asks it for addresses without saying of which attempt: whoever
    starts first may find that of a process which has died, and fails where nobody answers.
    """
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if attempt == 0 or not shared or distributed.is_initialized():
        return
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.PrefixStore(  # pyright: ignore[reportPrivateImportUsage]
        f"attempt-{attempt}",
        distributed.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            *place, world_size=world, is_master=False
        ),
    )
    backend = "nccl" if device_type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world)


def _processes(settings: EngineConfig) -> tuple[str, int]:
    """Devices of each machine, and machines; a launcher's environment variables decide if there are any."""
    local, world = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    if "TORCHELASTIC_RUN_ID" in os.environ and local and world:
        return local, int(world) // int(local)
    return settings.devices, settings.nodes


def device_type(accelerator: str) -> str:
    """What a setting amounts to on this machine; a ValueError where it has no such device."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if accelerator == "auto":
        return next(name for name, there in available.items() if there)
    if not available[accelerator]:
        there = ", ".join(name for name, there in available.items() if there)
        raise fail("Engine", f"`accelerator` must be one of this machine ({there}), got {accelerator!r}.")
    return accelerator


def processes_here(settings: EngineConfig) -> int:
    """How many a setting amounts to on this machine; a ValueError where it has no room for them."""
    device, (devices, _) = device_type(settings.accelerator), _processes(settings)
    if devices == "auto":
        return torch.cuda.device_count() if device == "cuda" else 1
    # a CPU takes two of any machine, so that what is meant for many can be tried on one core
    room = {"cuda": torch.cuda.device_count(), "mps": 1, "cpu": max(2, os.cpu_count() or 1)}[device]
    if int(devices) > room and "TORCHELASTIC_RUN_ID" not in os.environ:
        what = "logical cores" if device == "cpu" else f"{device} devices"
        raise fail("Engine", f"`devices` must be at most {room}, the {what} of this machine, got {devices}.")
    return int(devices)
