"""What a call says when it refuses its arguments."""

import pytest


def refusal(call, *arguments, **options) -> str:
    """The message of the ValueError that the call raises, which must be one line with a full stop."""
    with pytest.raises(ValueError) as caught:
        call(*arguments, **options)
    message = f"{caught.value}"
    assert "\n" not in message and message.endswith((".", "?"))
    return message
