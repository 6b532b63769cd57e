"""The compiled kernel; `native.py` passes its arguments."""

def evaluate(header: bytes, *arguments: int) -> bool:
    """Write the loss and, where there is memory for it, the gradient; False for unsupported inputs."""

def measure(*arguments: int) -> bool:
    """Write a measure of every row; False if the logits are not supported."""

def divergence(*arguments: int) -> bool:
    """Write every row's divergence, or its gradients; False if the logits are not supported."""

def variance(*arguments: int) -> bool:
    """Write the variance of every class; False if the logits are not supported."""

def read_rows(*arguments: float) -> bool:
    """Write what metrics need of every row; False if the rows are not supported."""

def instruction_sets() -> list[str]:
    """Names of those this processor has, best first."""

def in_use() -> str:
    """Name of the instruction set in use."""

def use(name: str) -> None:
    """Use the instruction set of this name from now on."""

def shares_pool() -> bool:
    """Whether torch's own thread pool is used."""
