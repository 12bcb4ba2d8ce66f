"""A user-defined method: `mpifed check ./FILE:MyMethod` tests its contract."""

from dataclasses import dataclass

from mpifed import Algorithm, Rate, Record


@dataclass(frozen=True)
class MyMethod(Algorithm):
    """Local descent in x and ascent in y, then the average: put your method here."""

    # The settings, as a job file names them; those with a value may be left out there.
    eta_x: Rate  # step size of x: a number or a schedule
    eta_y: Rate
    K: int = 4  # local steps a round

    steps = "K"  # which of them counts the local steps
    # What every client reads; "x" and "y" are of the size of the problem's blocks. Further fields, such as
    # c="x", begin as zeros.
    shared = Record(x="x", y="y")
    # What a client keeps between rounds would be: client = Record(c="x")
    # What a client sends: it is averaged over the clients of the round.
    message = Record(x="x", y="y")

    def client_round(self, now, shared, client, message, oracle):
        """What clients do in a round. Fields of `shared` are [d] and only read; all else is [C, d]."""
        x, y = shared.x, shared.y
        for k in range(1, self.K + 1):
            t = now.step(k)  # the step's number since the run began, from 1
            gx, gy = oracle.grad(x, y, oracle.sample())  # on a problem without y: oracle.grad(x, sample)
            x = oracle.sets.x(x - self.eta_x(t) * gx)  # projected, where the problem has a set of x
            y = oracle.sets.y(y + self.eta_y(t) * gy)
        message.x, message.y = x, y  # every field of the message is filled

    def server_round(self, now, shared, mean):
        """What the server does with the averages. Without it they replace the fields of the same names."""
        shared.x = now.sets.x(shared.x + (mean.x - shared.x))
        shared.y = now.sets.y(shared.y + (mean.y - shared.y))
