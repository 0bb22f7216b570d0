# SPDX-License-Identifier: Apache-2.0
"""kvstrata for Python, by ctypes: keeps an LLM's computed prompt prefixes and gives them back exactly.

What each call promises (ownership, threads, units, failure) is said in include/kvstrata/c_api.h; names are the same.
Every handle is a context manager. Memory is anything with the buffer protocol (bytearray, array, mmap, numpy arrays):
it is pinned and used in place, never copied. Failures raise Error with code, field and message.
"""

from ._abi import *  # noqa: F401,F403 - the constants of the C header under their own names
from ._library import Error, abi_version, format_version, status_name, version_string
from .cache import Cache, Match, Namespace, Pin, PinRange
from .layout import Layout, Stream
from .plan import Buffer, Column, Plan
from .storage import Entry, Request, Storage
from .writer import Writer

__all__ = ["Buffer", "Cache", "Column", "Entry", "Error", "Layout", "Match", "Namespace", "Pin", "PinRange", "Plan",
           "Request", "Storage", "Stream", "Writer", "abi_version", "format_version", "status_name", "version_string"]
