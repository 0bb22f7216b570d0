# SPDX-License-Identifier: Apache-2.0
"""What is Python's own in the package: errors, memory in place, storages as classes, lifetimes.

usage: test_package.py ABI_JSON   (KVSTRATA_LIBRARY names the library)
"""

import array
import ctypes
import gc
import json
import sys
import unittest
import weakref

import kvstrata
from kvstrata import Buffer, Cache, Column, Entry, Error, Layout, Storage, _abi

ABI_JSON = sys.argv.pop()
IDENTITY = {"model.weights": b"w", "adapter": "", "engine.state_version": "1", "tenant": ""}


class MemoryStorage(Storage):
    def __init__(self):
        self.records = {}
        self.problem = None

    def put(self, key, parts, meta):
        if self.problem:
            raise self.problem
        self.records[key] = (b"".join(parts), meta)

    def get(self, key, offset, destination):
        destination[:] = self.records[key][0][offset:offset + len(destination)]

    def stat(self, key):
        return len(self.records[key][0]) if key in self.records else None

    def remove(self, key):
        self.records.pop(key, None)

    def list(self, cursor, capacity):
        if self.problem:
            raise self.problem
        items = list(self.records.items())[cursor:cursor + capacity]
        following = cursor + len(items)
        return ([Entry(key, len(data), len(data), meta) for key, (data, meta) in items],
                following if following < len(self.records) else 0)


def store_state(namespace, state, tokens=40):
    with namespace.writer() as writer:
        writer.set_source(Buffer(0, state))
        writer.advance(range(tokens), tokens)
        writer.snapshot()
        return writer.commit()


class PackageTest(unittest.TestCase):
    def setUp(self):
        self.cache = Cache(capacity_bytes=1 << 20)
        self.layout = Layout.opaque(16)
        self.namespace = self.cache.namespace(self.layout, IDENTITY)

    def test_structs_and_constants_are_those_of_the_c_compiler(self):
        with open(ABI_JSON, encoding="utf-8") as stream:
            data = json.load(stream)
        for name, struct in data["structs"].items():
            if struct["header"] != "c_api.h":
                continue
            mine = getattr(_abi, name)
            self.assertEqual(ctypes.sizeof(mine), struct["size"], name)
            self.assertEqual([field[0] for field in mine._fields_], [member["name"] for member in struct["members"]])
            for member in struct["members"]:
                field = getattr(mine, member["name"])
                self.assertEqual((field.offset, field.size), (member["offset"], member["size"]), member["name"])
        for name, value in data["constants"].items():
            if not name.startswith(("KVSTRATA_KERNELS_", "KVSTRATA_CUDA_")):
                self.assertEqual(getattr(_abi, name), value, name)

    def test_an_error_names_its_code_and_field(self):
        with self.assertRaises(Error) as caught:
            Layout.opaque(769)
        self.assertEqual(caught.exception.code, kvstrata.KVSTRATA_E_INVALID_ARGUMENT)
        self.assertEqual(caught.exception.field, "block_tokens")
        self.assertIn("KVSTRATA_E_INVALID_ARGUMENT", str(caught.exception))

    def test_memory_of_any_kind_is_used_in_place(self):
        state = bytes(range(80))
        for source in (state, bytearray(state), memoryview(state), array.array("i", state[:80])):
            self.namespace.drop()
            self.assertEqual(store_state(self.namespace, source).snapshots_stored, 1)
            match = self.namespace.lookup(array.array("i", range(41)))
            for into in (bytearray(80), array.array("i", bytes(80)), (ctypes.c_char * 80)()):
                with match.plan() as plan:
                    plan.start([Buffer(0, into)])
                    self.assertEqual(plan.wait().usable_tokens, 40)
                self.assertEqual(bytes(memoryview(into).cast("B")), state)

    def test_a_destination_must_be_writable(self):
        store_state(self.namespace, bytes(80))
        with self.namespace.lookup(range(41)).plan() as plan:
            with self.assertRaises(BufferError):
                plan.start([Buffer(0, bytes(80))])

    def test_a_destination_cannot_move_until_the_plan_is_released(self):
        store_state(self.namespace, bytes(80))
        into = bytearray(80)
        plan = self.namespace.lookup(range(41)).plan()
        plan.start([Buffer(0, into)])
        with self.assertRaises(BufferError):
            into.extend(bytes(1000))
        plan.wait()
        plan.release()
        into.extend(bytes(1000))

    def stored_rows(self):
        """A namespace with one block of 16 rows of 6 bytes, and these rows."""
        with Layout.mla(1, 6, 16) as layout:
            namespace = self.cache.namespace(layout, {**IDENTITY, "model.quantization": "", "rope": "", "packing": "",
                                                      "kernel.numerics": ""})
        rows = [bytes([row] * 6) for row in range(16)]
        with namespace.writer() as writer:
            writer.set_source(Buffer(0, b"".join(rows)))
            writer.advance(range(16), 16)
            self.assertEqual(writer.commit().blocks_stored, 1)
        return namespace, rows

    def test_pinned_rows_are_there_until_the_last_view_has_gone(self):
        namespace, rows = self.stored_rows()
        with namespace.lookup(range(17)).pin() as pin:
            self.assertEqual((pin.info.first_token, pin.info.end_token), (0, 16))
            one, = pin.ranges()
            self.assertEqual((one.stream, one.first_row, one.rows), (0, 0, 16))
            self.assertEqual(self.cache.stats.pinned_bytes, pin.info.held_bytes)
        held = self.cache.stats.pinned_bytes
        self.assertGreater(held, 0)
        with self.assertRaises(Error) as caught:
            pin.range(0)
        self.assertEqual(caught.exception.code, kvstrata.KVSTRATA_E_INVALID_ARGUMENT)
        with self.assertRaises(TypeError):
            one.data[0] = 1
        last = one.data[6:12]
        self.assertEqual(one.data, b"".join(rows))
        namespace.drop()
        del one
        gc.collect()
        self.assertEqual(self.cache.stats.pinned_bytes, held)
        self.assertEqual(last, rows[1])
        del last
        gc.collect()
        self.assertEqual(self.cache.stats.pinned_bytes, 0)

    def test_columns_and_pages(self):
        namespace, rows = self.stored_rows()
        pages = bytearray(8 * 64)  # pages of 4 rows: at first the front columns, 2 bytes a row, then the rest
        ids = array.array("q", [5, 0, 7, 2])
        with namespace.lookup(range(17)).plan() as plan:
            plan.start([Buffer(0, pages, form=kvstrata.KVSTRATA_FORM_PAGES, rows_per_page=4, page_stride=64,
                               page_ids=ids, columns=[Column(2, 0, 2), Column(4, 8, 4)])])
            self.assertEqual(plan.wait().state, kvstrata.KVSTRATA_PLAN_COMPLETE)
        for row in range(16):
            page = 64 * ids[row // 4]
            front = page + row % 4 * 2
            rest = page + 8 + row % 4 * 4
            self.assertEqual(pages[front:front + 2] + pages[rest:rest + 4], rows[row])

    def test_a_signal_tells_the_end(self):
        store_state(self.namespace, bytes(80))
        states = []
        with self.namespace.lookup(range(41)).plan(signal=lambda ready, state: states.append(state)) as plan:
            plan.start([Buffer(0, bytearray(80))])
            plan.wait()
        self.assertEqual(states[-1], kvstrata.KVSTRATA_PLAN_COMPLETE)

    def test_an_exception_in_a_storage_becomes_a_status(self):
        storage = MemoryStorage()
        for problem, code in ((ValueError("x"), kvstrata.KVSTRATA_E_CALLBACK),
                              (Error(kvstrata.KVSTRATA_E_IO), kvstrata.KVSTRATA_E_IO)):
            storage.problem = problem
            with self.assertRaises(Error) as caught:
                Cache(storage=storage, capacity_bytes=1 << 20)
            self.assertEqual(caught.exception.code, code)
        storage.problem = None
        with Cache(storage=storage, capacity_bytes=1 << 20) as cache:
            with cache.namespace(self.layout, IDENTITY) as namespace:
                storage.problem = ValueError("x")
                self.assertEqual(store_state(namespace, b"state").snapshots_dropped, 1)
                storage.problem = None
                self.assertEqual(store_state(namespace, b"state").snapshots_stored, 1)

    def test_a_storage_is_let_go_with_the_last_handle_of_its_cache(self):
        storage = MemoryStorage()
        seen = weakref.ref(storage)
        cache = Cache(storage=storage, capacity_bytes=1 << 20)
        namespace = cache.namespace(self.layout, IDENTITY)
        del storage
        cache.release()
        gc.collect()
        self.assertIsNotNone(seen())
        namespace.release()
        gc.collect()
        self.assertIsNone(seen())

    def test_progress_that_raises_ends_a_verify(self):
        store_state(self.namespace, bytes(80))

        def raising(done, total):
            raise KeyError(done)
        with self.assertRaises(Error) as caught:
            self.cache.verify(raising)
        self.assertEqual(caught.exception.code, kvstrata.KVSTRATA_E_CANCELLED)

    def test_a_fork_outlives_the_writer_it_came_from(self):
        writer = self.namespace.writer()
        writer.set_source(Buffer(0, bytearray(b"state")))
        writer.advance(range(20), 20)
        fork = writer.fork()
        writer.release()
        gc.collect()
        fork.snapshot()
        self.assertEqual(fork.commit().snapshots_stored, 1)

    def test_a_released_handle_answers_with_an_error(self):
        self.namespace.release()
        self.namespace.release()
        with self.assertRaises(Error) as caught:
            self.namespace.lookup(range(41))
        self.assertEqual(caught.exception.code, kvstrata.KVSTRATA_E_INVALID_ARGUMENT)


if __name__ == "__main__":
    unittest.main()
