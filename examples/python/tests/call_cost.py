# SPDX-License-Identifier: Apache-2.0
"""The cases of benchmarks/call_cost/call_cost.py through the Python package.

usage: call_cost.py lookup|miss|restore|pinned_hit COUNT
"""

import array
import sys

from kvstrata import Buffer, Cache, Layout, Stream, _abi

TOKENS, ROW_BYTES = 2048, 16


def main(case, count):
    ids = array.array("i", (i * 3 for i in range(TOKENS + 1)))
    tokens = array.array("i", [7] * (TOKENS + 1)) if case == "miss" else ids
    expected = 0 if case == "miss" else TOKENS
    rows = bytearray(TOKENS * ROW_BYTES)
    row = Stream(_abi.KVSTRATA_STREAM_ROWS, _abi.KVSTRATA_ROLE_OTHER, row_bytes=ROW_BYTES)
    with Cache(capacity_bytes=64 << 20) as cache, Layout.create([row], block_tokens=64) as layout:
        space = cache.namespace(layout, {"model.weights": "w", "tenant": ""})
        with space.writer() as writer:
            writer.set_source(Buffer(0, rows))
            writer.advance(ids[:TOKENS], TOKENS)
            writer.commit()
        for _ in range(count):
            with space.lookup(tokens) as match:
                if case == "restore":
                    with match.plan() as plan:
                        plan.start([Buffer(0, rows)])
                        assert plan.wait().usable_tokens == expected
                if case == "pinned_hit":
                    with match.pin() as pin:
                        assert pin.info.end_token == expected
                        assert len(pin.range(0).data) == len(rows)
                assert match.info.usable_tokens == expected


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
