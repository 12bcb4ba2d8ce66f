"""A user-defined method: `mpifed check ./FILE:MyMethod` tests its contract."""

from dataclasses import dataclass

from mpifed import Algorithm, Rate, Record


@dataclass(frozen=True)
class MyMethod(Algorithm):
    """Local descent in x and ascent in y, then averaging: replace it with your method."""

    # The settings in a job file. Settings with a default are optional.
    eta_x: Rate  # step size of x: a number or a schedule
    eta_y: Rate
    K: int = 4  # local steps per round

    steps = "K"  # the setting that counts local steps
    # State of the server, which clients read. Fields with the shape "x" or "y" have the size of that block of
    # the problem. Further fields, such as c="x", start at zero.
    shared = Record(x="x", y="y")
    # A client that keeps state between rounds needs e.g. client = Record(c="x").
    # Messages of the clients, which are averaged over the cohort.
    message = Record(x="x", y="y")

    def client_round(self, now, shared, client, message, oracle):
        """Do the local steps of C clients. Fields of `shared` are [d] and read-only, the others [C, d]."""
        x, y = shared.x, shared.y
        for k in range(1, self.K + 1):
            t = now.step(k)  # number of the step in the run, from 1
            gx, gy = oracle.grad(x, y, oracle.sample())  # without y: oracle.grad(x, sample)
            x = oracle.sets.x(x - self.eta_x(t) * gx)  # projects if the problem has a set of x
            y = oracle.sets.y(y + self.eta_y(t) * gy)
        message.x, message.y = x, y  # fill every field of the message

    def server_round(self, now, shared, mean):
        """Update the server state. Without this function, the averages replace fields of the same names."""
        shared.x = now.sets.x(mean.x)
        shared.y = now.sets.y(mean.y)
