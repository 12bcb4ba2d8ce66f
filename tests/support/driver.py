"""mpifed's command line with faults: driver.py FAULT... -- ARGUMENTS OF mpifed

A fault is ``RANK ACTION MODULE:FUNCTION CALL``. With ``"1 kill mpifed.parallel.comm:MpiComm.bcast_ 7"``,
rank 1 kills itself when it enters its 7th call of that function; with ``kill-after``, when that call has
returned. The other actions also take place on entering:

raise, exit:CODE      an error, ``sys.exit``
allocate              an array that is larger than any memory
sleep, stop, gil      hang: asleep, by SIGSTOP, or in C while holding the GIL
pause:FOLDER          create FOLDER/arrived-CALL, then wait until FOLDER/go-CALL exists
fill:FILE             write FILE until LEFT bytes of the disk are free
free:FILE             remove FILE
skip                  from this call on, calls do nothing
"""

import contextlib
import ctypes
import functools
import importlib
import itertools
import os
import shlex
import signal
import sys
import time
from pathlib import Path

#: Free bytes, enough for the start of a file.
LEFT = 8192


def hang_in_c(_):
    mutex = ctypes.create_string_buffer(64)  # one that is locked twice; a signal would wake a sleep
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


def pause(argument):
    Path(argument.format("arrived")).touch()
    while not Path(argument.format("go")).exists():
        time.sleep(0.01)


def fill(path):
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    os.truncate(path, max(0, os.path.getsize(path) - LEFT))


def raise_error(_):
    raise RuntimeError("the dog ate my gradient")


def allocate(_):
    import torch

    torch.zeros(2**50, dtype=torch.uint8)


ACTIONS = {
    "allocate": allocate,
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "raise": raise_error,
    "exit": lambda code: sys.exit(int(code)),
    "sleep": lambda _: time.sleep(1000),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "gil": hang_in_c,
    "pause": pause,
    "fill": fill,
    "free": os.unlink,
}


def install(fault: str) -> None:
    """Patch this process if the fault applies to its rank."""
    rank, action, place, call = shlex.split(fault)
    mine = next(
        (os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), "0"
    )
    if rank != mine:
        return
    action, _, argument = action.partition(":")
    if action == "pause":
        argument = f"{argument}/{{}}-{call}"
    module, _, path = place.partition(":")
    *outer, name = path.split(".")
    owner = functools.reduce(getattr, outer, importlib.import_module(module))
    whole, calls = getattr(owner, name), itertools.count(1)

    @functools.wraps(whole)
    def faulty(*arguments, **options):
        number = next(calls)
        if action == "skip":
            return None if number >= int(call) else whole(*arguments, **options)
        if action == "kill-after":
            result = whole(*arguments, **options)
            return ACTIONS["kill"]("") if number == int(call) else result
        if number == int(call):
            ACTIONS[action](argument)
        return whole(*arguments, **options)

    setattr(owner, name, faulty)


split = sys.argv.index("--")
for text in sys.argv[1:split]:
    install(text)
sys.argv[1:] = sys.argv[split + 1 :]
importlib.import_module("mpifed.cli.main").main()
