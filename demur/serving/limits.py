"""What a request may ask for at most; beyond it is refused in one sentence, before anything is computed."""

from dataclasses import dataclass


class Refused(ValueError):
    """A request that is not answered, with the status of HTTP that says so."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    body: int = 2**23  # bytes of a request
    bodies: int = 2**27  # bytes of all requests that are being read or answered
    requests: int = 256  # at a time
    inputs: int = 256  # of a request
    pixels: int = 2**24  # of an image, before it is brought to the model's size
    together: int = 2**27  # pixels of all images of a request: a few bytes can hold many
    letters: int = 2**16  # of a text
    seconds: float = 10.0  # until a request has arrived whole
