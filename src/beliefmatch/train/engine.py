"""Where a training runs: processes, devices, numbers and layout, through Lightning Fabric."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from beliefmatch.checks import fail
from beliefmatch.extras import needs
from beliefmatch.train.precision import Mixed, resolved
from beliefmatch.train.settings import EngineSettings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Engine", "device_type"]

Result = TypeVar("Result")


class Engine:
    """A launched Fabric and what the loop asks of it.

    One process works alone. More are started by this class (`devices`), each running the same script again,
    or by `torchrun`, `fabric run` or SLURM, whose environment variables then say how many there are.
    """

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
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


def _fabric(settings: EngineSettings, device_type: str, precision: Mixed) -> "Fabric":
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


def _processes(settings: EngineSettings) -> tuple[str, int]:
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


def processes_here(settings: EngineSettings) -> int:
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
