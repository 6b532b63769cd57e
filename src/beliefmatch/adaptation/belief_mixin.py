"""The methods that adaptation adds to a classifier: belief, prediction and abstention."""

import copyreg
import inspect
from functools import cache
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from beliefmatch._rows import work_dtype
from beliefmatch._validate import fail
from beliefmatch.adaptation.modes import evaluating
from beliefmatch.adaptation.outputs import arguments, logits_of
from beliefmatch.belief import Belief, Measure
from beliefmatch.methods.base import Prediction

__all__ = ["BeliefMixin", "add_belief"]

_ORIGIN = "_made_of"
_SUFFIX = "WithBelief"
_LEFT_OUT = ("adaptation",)  # of a copy or a pickle: the features of all data hang on it


class BeliefMixin(nn.Module):
    """Added to the class of a user's classifier; holds no parameters, and no state but what is set on it.

    Inputs are what the classifier itself takes; a mapping is passed on by name, a tuple or list by place.
    """

    def belief(self, x: Any, *, scale: float = 1.0) -> Belief:
        """The belief about the classes of a batch, in eval mode and without gradients."""
        return Belief(_logits(self, x, "belief"), scale=scale)

    def predict(self, x: Any) -> Prediction:
        """Probabilities and belief of a batch, read in double precision."""
        logits = _logits(self, x, "predict")
        belief = Belief(logits.to(work_dtype(logits.device)))
        return Prediction(probs=belief.probs, belief=belief)

    def abstain(self, x: Any, threshold: float, *, measure: Measure = "confidence") -> Tensor:
        """For which examples of a batch no prediction should be made; see `Belief.abstain`."""
        return self.belief(x).abstain(threshold, measure=measure)

    def __reduce_ex__(self, protocol: Any) -> Any:
        made: Any = super().__reduce_ex__(protocol)
        is_plain = made[0] is getattr(copyreg, "__newobj__", None)
        if _ORIGIN not in vars(type(self)) or not is_plain:
            return made
        state = {name: value for name, value in made[2].items() if name not in _LEFT_OUT}
        return _blank, vars(type(self))[_ORIGIN], state, *made[3:]  # the class has no address to be found by


Mixin = TypeVar("Mixin", bound=BeliefMixin)


def add_belief(model: nn.Module, mixin: type[Mixin] = BeliefMixin) -> Mixin:
    """Make a module's class one with the mixin's methods; the module itself, changed in place.

    What the user's class or module has under such a name stays what it is, `belief` excepted.
    """
    own = type(model)
    if _ORIGIN in vars(own):
        own = vars(own)[_ORIGIN][0]
    taken = tuple(
        name for name in _added(mixin) if name in {*model._modules, *model._parameters, *model._buffers}
    )
    if "belief" in taken:
        raise fail(
            "with_head", f"`model` ({own.__name__}) must have no part of the name `belief`; rename it."
        )
    model.__class__ = _class(own, mixin, taken)  # pyright: ignore[reportAttributeAccessIssue]
    return cast("Mixin", model)


@cache
def _class(own: type[nn.Module], mixin: type[BeliefMixin], taken: tuple[str, ...]) -> type[nn.Module]:
    names = {
        name: inspect.getattr_static(own, name)
        for name in _added(mixin)
        if name != "belief" and hasattr(own, name)
    }
    names |= {name: _part(name) for name in taken}
    names |= {
        _ORIGIN: (own, mixin, taken),
        "__module__": own.__module__,
        "__qualname__": own.__qualname__ + _SUFFIX,
        "__doc__": own.__doc__,
    }
    return type(own.__name__ + _SUFFIX, (mixin, own), names)


def _blank(own: type[nn.Module], mixin: type[BeliefMixin], taken: tuple[str, ...]) -> nn.Module:
    made = _class(own, mixin, taken)
    return made.__new__(made)


def _added(mixin: type[BeliefMixin]) -> list[str]:
    return [name for name in dir(mixin) if not name.startswith("_") and not hasattr(nn.Module, name)]


def _part(name: str) -> property:
    """A method of the mixin would hide a layer of the same name, since modules are looked up last."""
    return property(lambda module: nn.Module.__getattr__(module, name))


def _logits(model: nn.Module, x: Any, caller: str) -> Tensor:
    args, kwargs = arguments(x)
    with evaluating(model):
        return logits_of(model(*args, **kwargs), caller=caller)
