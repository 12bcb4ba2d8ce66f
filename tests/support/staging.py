"""Copies between a device and the host as late as they may happen, on the CPU."""

import torch


class LateCopies:
    """As ``CudaCopies``: to the host when the event is waited for, to the device at the end; until then the
    target is NaN.

    ``log`` is what happened, in its order.
    """

    def __init__(self):
        self.log, self._returning = [], []

    def begin(self):
        assert not self._returning

    def to_host(self, target, source):
        target.fill_(torch.nan)
        self.log.append("to host")
        return Landing(lambda: target.copy_(source))

    def to_device(self, target, source):
        assert not source.isnan().any(), "what goes back has been summed"
        target.fill_(torch.nan)
        self.log.append("to device")
        self._returning.append(lambda: target.copy_(source))

    def end(self):
        for copy in self._returning:
            copy()
        self._returning.clear()


class Landing:
    def __init__(self, copy):
        self.synchronize = copy
