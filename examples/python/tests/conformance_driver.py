# SPDX-License-Identifier: Apache-2.0
"""Answers the conformance cases with the Python package (tests/conformance/README.md says what the steps mean).

usage: conformance_driver.py CASES FOLDER   prints one line for each case; stores with a path lie in FOLDER
"""

from __future__ import annotations

import array
import os
import sys
import threading

import kvstrata
from kvstrata import Buffer, Cache, Entry, Error, Layout, Match, Stream

GUARD = 16
UNTOUCHED = 0xEE
FIELDS = ("model.weights", "model.quantization", "rope", "packing", "adapter", "engine.state_version",
          "kernel.numerics", "tenant")


def row_byte(mark: int, stream: int, at: int, row: int, byte: int) -> int:
    return (mark * 29 + stream * 37 + at * 101 + row * 11 + byte * 3 + (row >> 8) * 5 + (at >> 8) * 7) & 0xFF


def fill(mark: int, stream: int, at: int, row: int, row_bytes: int) -> bytes:
    return bytes(row_byte(mark, stream, at, row, byte) for byte in range(row_bytes))


def tokens_of(spec: str) -> array.array:
    """"1x100,2x50": 100 ids of kind 1, then 50 of kind 2; an id depends on its kind and its position."""
    ids = array.array("i")
    for part in filter(None, spec.split(",")):
        kind, count = part.split("x")
        for position in range(len(ids), len(ids) + int(count)):
            ids.append((int(kind) * 101 + position * 7) % 50000)
    return ids


def escaped(text: str) -> str:
    return text.replace(" ", "~").replace("\n", "|")


def plain(text: str) -> str:
    return text.replace("~", " ").replace("|", "\n")


class Store(kvstrata.Storage):
    """The caller's storage: records in memory, that live as long as the case. Requests can be held back."""

    def __init__(self, capabilities: int) -> None:
        self.capabilities = capabilities
        self.lock = threading.Lock()
        self.records: dict = {}  # key: (payload, meta), in order of putting
        self.held: list = []
        self.hold = ""
        self.failing: dict = {}
        self.destroyed_count = 0

    def fail(self, what: str) -> None:
        if self.failing.get(what):
            raise Error(self.failing[what])

    def put(self, key, parts, meta) -> None:
        self.fail("put")
        with self.lock:
            self.records.pop(key, None)
            self.records[key] = (bytearray(b"".join(parts)), meta)

    def get(self, key, offset, destination) -> None:
        self.fail("get")
        with self.lock:
            if key not in self.records:
                raise Error(kvstrata.KVSTRATA_E_NOT_FOUND)
            payload = self.records[key][0]
            if offset + len(destination) > len(payload):
                raise Error(kvstrata.KVSTRATA_E_CORRUPT)
            destination[:] = payload[offset:offset + len(destination)]

    def submit(self, requests) -> None:
        for request in requests:
            with self.lock:
                wait = self.hold == ("put" if request.is_put else "get")
                if wait:
                    self.held.append(request)
            if not wait:
                request.run(self)

    def let_go(self) -> None:
        with self.lock:
            held, self.held, self.hold = self.held, [], ""
        for request in held:
            request.run(self)

    def stat(self, key):
        self.fail("stat")
        with self.lock:
            return len(self.records[key][0]) if key in self.records else None

    def remove(self, key) -> None:
        self.fail("remove")
        with self.lock:
            self.records.pop(key, None)

    def sync(self) -> None:
        self.fail("sync")

    def list(self, cursor, capacity):
        self.fail("list")
        with self.lock:
            items = list(self.records.items())
        chosen = items[cursor:cursor + capacity]
        following = cursor + len(chosen)
        return ([Entry(key, len(payload), len(payload) + len(meta), meta) for key, (payload, meta) in chosen],
                following if following < len(items) else 0)

    def destroyed(self) -> None:
        self.destroyed_count += 1


class Restore:
    """A plan with the memory that it fills: guard bytes, the rows, guard bytes."""

    def __init__(self, plan: kvstrata.Plan, match: "Found") -> None:
        self.plan = plan
        self.match = match
        self.mark = 0
        self.segments = plan.segments()
        self.memory = [bytearray([UNTOUCHED]) * (segment.bytes + 2 * GUARD) for segment in self.segments]

    def start(self, short: bool, leave_out: bool) -> None:
        buffers = []
        for segment, memory in zip(self.segments, self.memory):
            view = memoryview(memory)[GUARD:len(memory) - GUARD - (1 if short and not buffers else 0)]
            first = segment.first_row if self.is_rows(segment.stream) else 0
            buffers.append(Buffer(segment.stream, view, first_row=first))
        self.plan.start(buffers[:-1] if leave_out else buffers)

    def is_rows(self, stream: int) -> bool:
        return self.match.layout.stream(stream).kind == kvstrata.KVSTRATA_STREAM_ROWS

    def wrong(self, snapshot_position: int) -> int:
        """Bytes that are not what the rule says, and guard bytes that have changed."""
        count = 0
        for segment, memory in zip(self.segments, self.memory):
            row_bytes = segment.bytes // segment.rows
            rows = self.is_rows(segment.stream)
            expected = bytearray([UNTOUCHED]) * GUARD
            for row in range(segment.rows):
                expected += (fill(self.mark, segment.stream, 0, segment.first_row + row, row_bytes) if rows else
                             fill(self.mark, segment.stream, snapshot_position, row, row_bytes))
            expected += bytearray([UNTOUCHED]) * GUARD
            count += sum(a != b for a, b in zip(memory, expected))
        return count


class Found:
    def __init__(self, match: Match, layout: Layout) -> None:
        self.match, self.layout = match, layout


class Space:
    def __init__(self, namespace: kvstrata.Namespace, layout: Layout) -> None:
        self.namespace, self.layout = namespace, layout


def answer_of(value: object) -> str:
    if hasattr(value, "_type_"):  # an array: digests are shown as hex
        return bytes(value).hex()
    if isinstance(value, bytes):
        return escaped(value.decode())
    return str(value)


class Case:
    """The handles of one case by name, and one method for each kind of step."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.named: dict = {}

    def step(self, operation: str, name: str, given: list, asked: list) -> list:
        """The answers to `asked`."""
        one = dict(given)
        try:
            answers = getattr(self, "do_" + operation)(name, one, given)
        except Error as error:
            return ["status=" + kvstrata.status_name(error.code)[9:]] + [
                f"{key}={error.field if key == 'field' else '-'}" for key in asked]
        return ["status=OK"] + [f"{key}={self.answer(answers, key)}" for key in asked]

    @staticmethod
    def answer(answers: object, key: str) -> str:
        if callable(answers):
            return answer_of(answers(key))
        if isinstance(answers, dict):
            return answer_of(answers[key])
        if ":" in key:  # an element of an array
            member, index = key.split(":")
            return answer_of(getattr(answers, member)[int(index)])
        return answer_of(getattr(answers, key))

    def do_version(self, name, one, given):
        return {"abi": kvstrata.abi_version(), "format": kvstrata.format_version()}

    def do_status(self, name, one, given):
        return {"name": kvstrata.status_name(int(one["code"]))}

    def do_layout(self, name, one, given):
        def numbers(key):
            return [int(word) for word in one[key].split(",")]
        options = {key: int(one[key]) for key in ("block_tokens", "rows", "index_keys", "include_draft") if key in one}
        if "preset" in one:
            layout = Layout.preset(one["preset"], **options)
        elif "gqa" in one:
            layout = Layout.gqa(*numbers("gqa"))
        elif "mla" in one:
            layout = Layout.mla(*numbers("mla"))
        elif "opaque" in one:
            layout = Layout.opaque(int(one["opaque"]))
        elif "text" in one:
            layout = Layout.from_text(plain(one["text"]))
        elif "config" in one:
            layout = Layout.from_config(plain(one["config"]), **options)
        else:
            family, *rest = one["create"].split(",")
            block, profile, mode, window, layers = map(int, rest)
            streams = [Stream(*map(int, value.split(","))) for key, value in given if key == "stream"]
            layout = Layout.create(streams, family=family, block_tokens=block, profile=profile, replay_mode=mode,
                                   replay_window=window, replay_layers=layers)
        self.named[name] = layout
        info = layout.info

        def answer(key):
            kind, _, rest = key.partition(":")
            if kind == "text":
                return escaped(layout.text)
            if kind == "snapshot_bytes":
                return layout.snapshot_bytes(int(rest))
            if kind == "rows":
                return layout.rows_at(*map(int, rest.split(",")))
            return getattr(info, key)
        return answer

    def do_storage(self, name, one, given):
        self.named[name] = Store(int(one.get("capabilities", 0)))
        return {}

    def do_hold(self, name, one, given):
        self.named[name].hold = one["kind"]
        return {}

    def do_let_go(self, name, one, given):
        self.named[name].let_go()
        return {}

    def do_fail(self, name, one, given):
        self.named[name].failing[one["call"]] = int(one["code"])
        return {}

    def do_damage(self, name, one, given):
        """Flips the last byte of each record of at least `bytes` bytes."""
        for payload, _ in self.named[name].records.values():
            if len(payload) >= int(one["bytes"]):
                payload[-1] ^= 1
        return {}

    def do_wipe(self, name, one, given):
        self.named[name].records.clear()
        return {}

    def do_swap(self, name, one, given):
        records = self.named[name].records
        (a, (left, left_meta)), (b, (right, right_meta)) = list(records.items())[-2:]
        records[a], records[b] = (right, left_meta), (left, right_meta)
        return {}

    def do_look(self, name, one, given):
        store = self.named[name]
        return {"records": len(store.records), "destroyed": store.destroyed_count, "held": len(store.held)}

    def do_cache(self, name, one, given):
        options = {key: int(value) for key, value in given if key not in ("path", "storage")}
        options["read_only"] = bool(options.get("read_only", 0))
        path = os.path.join(self.folder, one["path"]) if "path" in one else None
        self.named[name] = Cache(path, storage=self.named[one["storage"]] if "storage" in one else None, **options)
        return {}

    def do_namespace(self, name, one, given):
        identity = {field: "kvstrata " + field for field in FIELDS}
        for key, value in given:
            if key.startswith("set."):
                identity[key[4:]] = plain(value)
            elif key.startswith("drop."):
                identity.pop(key[5:])
        layout = self.named[one["layout"]]
        namespace = self.named[one["cache"]].namespace(
            layout, identity, must_exist=bool(int(one.get("must_exist", 0))),
            snapshot_policy=int(one.get("policy", 0)), snapshot_every_tokens=int(one.get("every", 0)),
            compress=int(one.get("compress", 0)), pack=int(one.get("pack", 0)))
        self.named[name] = Space(namespace, layout)
        return namespace.info

    def do_info(self, name, one, given):
        return self.named[name].namespace.info

    def do_drop(self, name, one, given):
        self.named[name].namespace.drop()
        return {}

    @staticmethod
    def set_sources(writer, layout, mark, position, opaque):
        for index in range(layout.info.stream_count):
            stream = layout.stream(index)
            if stream.kind == kvstrata.KVSTRATA_STREAM_ROWS:
                at, rows = 0, position // stream.ratio
            else:
                at, rows = position, layout.rows_at(index, position)
            row_bytes = stream.row_bytes or opaque
            data = b"".join(fill(mark, index, at, row, row_bytes) for row in range(rows))
            writer.set_source(Buffer(index, data))

    def do_store(self, name, one, given):
        space = self.named[name]
        tokens = tokens_of(one["tokens"])
        found = self.named[one["match"]].match if "match" in one else None
        flags = (kvstrata.KVSTRATA_COMMIT_DURABLE if one.get("durable") == "1" else 0) | \
                (kvstrata.KVSTRATA_COMMIT_OUTPUT_END if one.get("output_end") == "1" else 0)
        with space.namespace.writer(found, flags=int(one.get("flags", 0)),
                                    restart_multiple=int(one.get("restart", 0))) as writer:
            begin = found.info.usable_tokens if found is not None else 0
            for position in map(int, one.get("at", str(len(tokens))).split(",")):
                self.set_sources(writer, space.layout, int(one.get("mark", 0)), position, int(one.get("opaque", 100)))
                writer.advance(tokens[begin:position], position)
                begin = position
                if one.get("snapshot") == "1":
                    writer.snapshot()
            return writer.commit(flags=flags)

    def do_positions(self, name, one, given):
        with self.named[name].namespace.writer(restart_multiple=int(one.get("restart", 0))) as writer:
            positions = writer.snapshot_positions(tokens_of(one["tokens"]))
        return {"positions": ",".join(map(str, positions))}

    def do_lookup(self, name, one, given):
        keys = []
        for key, value in given:
            if key == "key":
                position, kind, text = value.split(",")
                keys.append((int(position), int(kind), text.encode()))
        space = self.named[one["namespace"]]
        match = space.namespace.lookup(
            tokens_of(one["tokens"]), extra_keys=keys, flags=int(one.get("flags", 0)),
            held_tokens=int(one.get("held", 0)), allowed_modes=int(one.get("modes", 0)),
            restart_multiple=int(one.get("restart", 0)), min_gain_tokens=int(one.get("min_gain", 0)),
            prefill_tokens_per_second=float(one.get("prefill", 0)),
            storage_bytes_per_second=float(one.get("rate", 0)), lease_ms=int(one.get("lease_ms", 0)))
        self.named[name] = Found(match, space.layout)
        return match.info

    def do_limit(self, name, one, given):
        self.named[name].match.limit(int(one["tokens"]))
        return self.named[name].match.info

    def do_renew(self, name, one, given):
        self.named[name].match.renew(int(one.get("ms", 0)))
        return {}

    def do_agree(self, name, one, given):
        return {"usable": Match.agree([self.named[word].match for word in [name, *one["with"].split(",")]])}

    def do_difference(self, name, one, given):
        position = self.named[name].match.first_difference()
        return {"position": "none" if position is None else position}

    def do_plan(self, name, one, given):
        found = self.named[one["match"]]
        plan = found.match.plan(flags=int(one.get("flags", 0)), timeout_ms=int(one.get("timeout", 0)))
        self.named[name] = restore = Restore(plan, found)
        return {"segments": len(restore.segments), "bytes": sum(segment.bytes for segment in restore.segments)}

    def do_start(self, name, one, given):
        restore = self.named[name]
        restore.mark = int(one.get("mark", 0))
        restore.start(one.get("short") == "1", one.get("leave_out") == "1")
        return {}

    def do_wait(self, name, one, given):
        restore = self.named[name]
        result = restore.plan.wait(int(one.get("timeout", 2**64 - 1)))

        def answer(key):
            if key == "wrong":
                return restore.wrong(result.snapshot_position)
            return result.status if key == "plan_status" else getattr(result, key)
        return answer

    def do_poll(self, name, one, given):
        return self.named[name].plan.poll()

    def do_cancel(self, name, one, given):
        self.named[name].plan.cancel()
        return {}

    def do_pin(self, name, one, given):
        self.named[name] = pin = self.named[one["match"]].match.pin()
        return pin.info

    def do_pinned(self, name, one, given):
        ranges = self.named[name].ranges()
        wrong = 0
        for part in ranges:
            row_bytes = len(part.data) // max(part.rows, 1)
            expected = b"".join(fill(int(one.get("mark", 0)), part.stream, 0, part.first_row + row, row_bytes)
                                for row in range(part.rows))
            wrong += sum(a != b for a, b in zip(part.data, expected))
        return {"streams": ",".join(str(part.stream) for part in ranges),
                "first_rows": ",".join(str(part.first_row) for part in ranges),
                "rows": ",".join(str(part.rows) for part in ranges),
                "bytes": sum(len(part.data) for part in ranges), "wrong": wrong}

    def do_release(self, name, one, given):
        thing = self.named.pop(name)
        for member in ("plan", "match", "namespace"):
            thing = getattr(thing, member) if isinstance(thing, (Restore, Found, Space)) and \
                member in thing.__dict__ else thing
        thing.release()
        return {}

    def do_stats(self, name, one, given):
        return self.named[name].stats

    def do_events(self, name, one, given):
        events, following = self.named[name].events(int(one["from"]))
        return {"count": len(events), "next": following, "kinds": ",".join(str(event.kind) for event in events),
                "positions": ",".join(str(event.position) for event in events),
                "digests": ",".join(bytes(event.digest).hex() for event in events)}

    def do_close(self, name, one, given):
        return self.named[name].close(int(one.get("timeout", 0)))

    def do_trim(self, name, one, given):
        return {"held": self.named[name].trim(int(one["bytes"]))}

    def do_sync(self, name, one, given):
        self.named[name].sync()
        return {}

    def do_verify(self, name, one, given):
        return self.named[name].verify((lambda done, total: False) if one.get("stop") == "1" else None)

    def do_purge(self, name, one, given):
        return {"bytes": self.named[name].purge_foreign()}

    def end(self) -> None:
        """In the order of making, newest last: parents go before what was made from them."""
        for store in self.named.values():
            if isinstance(store, Store):
                store.let_go()
        for name in list(self.named):
            if not isinstance(self.named[name], Store):
                self.do_release(name, {}, [])


def parse(line: str) -> tuple:
    left, _, right = line.partition("=>")
    words = left.split()
    named = len(words) > 1 and "=" not in words[1]
    given = [tuple(word.split("=", 1)) for word in words[2 if named else 1:]]
    asked = [word.split("=", 1)[0] for word in right.split()]
    return words[0], words[1] if named else "", given, [key for key in asked if key != "status"]


def main(path: str, folder: str) -> None:
    case, name, answers = Case(folder), "", []

    def finish() -> None:
        case.end()
        if name:
            print(f"{name}: " + " | ".join(answers))
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            line = line.split("#")[0].strip()
            if not line:
                continue
            operation, first, given, asked = parse(line)
            if operation == "case":
                finish()
                case, name, answers = Case(folder), first, []
            else:
                answers.append(" ".join(case.step(operation, first, given, asked)))
    finish()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
