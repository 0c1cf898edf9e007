"""What the service says when it cannot do what was asked."""


class Refusal(ValueError):
    """What was asked for is wrong, or cannot be had now; the sentence says why and what to do.

    Attributes:
        status: of the answer over HTTP.
    """

    status = 422


class UnknownModel(Refusal):
    """There is no model of that name."""

    status = 404


class TooLarge(Refusal):
    """The request has more bytes than are read."""

    status = 413


class TooSlow(Refusal):
    """The body of the request did not arrive in time."""

    status = 408


class TooMany(Refusal):
    """Too many requests at once."""

    status = 429


class Unavailable(Refusal):
    """The work took longer than a request may take, or the service is at its limit."""

    status = 503


class WrongHost(Refusal):
    """The request was meant for a host that is not this one."""

    status = 400


class Failure(Refusal):
    """What should not happen has happened; the reason is for the log and not for the client."""

    status = 500
