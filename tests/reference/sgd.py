"""Stochastic gradient descent with momentum and weight decay, written as in the documentation of ``torch.optim.SGD``."""

from __future__ import annotations


class SGD:
    """The optimiser of one block of one client in one round."""

    def __init__(self, momentum=0.0, nesterov=False, weight_decay=0.0):
        self.mu, self.nesterov, self.lam, self.b = momentum, nesterov, weight_decay, None

    def step(self, theta, g, gamma):
        """Return the next point from θ with the gradient g and the step size γ, t = 1, 2, ... of the state."""
        if self.lam != 0:
            g = g + self.lam * theta
        if self.mu != 0:
            self.b = self.mu * self.b + g if self.b is not None else g
            g = g + self.mu * self.b if self.nesterov else self.b
        return theta - gamma * g
