"""mpifed: federated minimax, variational-inequality, compositional and bilevel optimisation on MPI clusters.

Importing the package has one side effect on the process: it sets the environment variable ``MKL_CBWR`` to
"AUTO" unless the variable is already set. MKL then returns bitwise identical results regardless of the memory
alignment of the operands, which ``run.reduction = "exact"`` requires. MKL reads the variable only once, at
its first matrix product. Import mpifed before the process computes its first matrix product; it may be
imported before or after torch.
"""

import os

import lazy_loader

from mpifed.base.versions import __version__ as __version__

os.environ.setdefault("MKL_CBWR", "AUTO")

# A public name is imported on first use from its module, as __init__.pyi gives it. Importing torch takes
# seconds, and the command line must install its signal handlers before that.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
