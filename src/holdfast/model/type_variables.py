"""Type variables of public classes, with defaults: `RunInfo` without type arguments means `RunInfo[Any]`.

Python 3.13 is the first whose `typing` has defaults. Type checkers know them from `typing_extensions`, which needn't be
installed for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R_co = TypeVar("R_co", covariant=True)
