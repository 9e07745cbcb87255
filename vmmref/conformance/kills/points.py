"""Where processes die: every point of the story, by role, in the order in which it is told.

A point is counted within one step of the story. Points of the producer's broker lie in the step that it was told last:
its thread answers while the producer waits for the next one.
"""

from __future__ import annotations

from vmmref.conformance.kills.executioner import Point
from vmmref.handles import HandleType

_POSIX, _FABRIC = str(HandleType.POSIX_FD), str(HandleType.FABRIC)
_CALLS = "vmmref.driver.calls:"
_READER = "vmmref.reader:RankReader."
_IMPORT = "vmmref.imported:PoolImport."
_BOOK = "vmmref.book:LeaseBook."
_PUBLISHER = "vmmref.publisher:Publisher."
_RECYCLER = "vmmref.recycler:Recycler."
_BROKER = "vmmref.broker:DescriptorBroker."
_ASKING = "vmmref.broker:request_descriptor"
_POOL = "vmmref.pool:VmmMemoryPool."
_PROXY = "vmmref.proxy:TensorProxy."
_PACKED = "vmmref.packed:PackedTensorProxy."
_FINISH = "vmmref.proxy:Reconstruction.finish"

CONSUMER: tuple[Point, ...] = (
    Point("a proxy has arrived", "deliver", "return", _PROXY + "from_bytes"),
    Point("a descriptor is about to be asked for", "first read", "call", _ASKING, handle_type=_POSIX),
    Point("a descriptor has been received", "first read", "return", _ASKING, handle_type=_POSIX),
    Point("the descriptor is imported", "first read", "return", _CALLS + "import_descriptor", handle_type=_POSIX),
    Point("the FABRIC handle is imported", "first read", "return", _CALLS + "import_fabric", handle_type=_FABRIC),
    Point("addresses are reserved", "first read", "return", _CALLS + "reserve_address"),
    Point("the pool is mapped, nobody may access it", "first read", "return", _CALLS + "map_memory"),
    Point("access is allowed", "first read", "return", _CALLS + "allow_access"),
    Point("the imported handle is given back", "first read", "return", _CALLS + "release_memory"),
    Point("the rank has its stream", "first read", "return", _CALLS + "create_stream"),
    Point("the rank's words have been read", "first read", "ran", "read of the words"),
    Point("the rank's table is started", "first read", "return", _READER + "start_table"),
    Point("the table is entered", "first read", "return", _READER + "enter"),
    Point("the copy-out is queued", "first read", "return", _CALLS + "copy_on_device"),
    Point("the read of R is queued", "first read", "return", _READER + "_queue_ready_read"),
    Point("the copy-out has run, R has not been read", "first read", "ran", "copy-out"),
    Point("R has been read, nobody has judged it", "first read", "ran", "read of R"),
    Point("R is judged", "first read", "return", _READER + "_judge"),
    Point("the acknowledgement is about to be queued", "first read", "call", _CALLS + "fill_word32"),
    Point("the acknowledgement is queued", "first read", "return", _CALLS + "fill_word32"),
    Point("the tensor is out, the acknowledgement has not run", "first read", "return", _FINISH),
    Point("the acknowledgement has run", "acknowledge", "ran", "acknowledgement"),
    Point("a release has entered the table", "release", "return", "vmmref.table:RankTable.enter"),
    Point("a release is queued", "release", "return", _CALLS + "fill_word32"),
    Point("the acknowledgement of a release has run", "acknowledge the release", "ran", "acknowledgement"),
    Point("a second copy is refused", "duplicate", "return", "vmmref.table:RankTable.enter"),
    Point("a reading is begun, its lease is not revoked yet", "begin", "return", _PROXY + "begin_reconstruction"),
    Point("the copy-out of a revoked lease has run", "finish", "ran", "copy-out"),
    Point("R of a revoked lease has been read", "finish", "ran", "read of R"),
    Point("the lease is found stale", "finish", "return", _READER + "_judge"),
    Point("a borrower has entered the table", "borrow", "return", _READER + "enter"),
    Point("a borrower has read R", "borrow", "ran", "read of R"),
    Point("a view is out", "borrow", "return", _READER + "borrow"),
    Point("the bytes are looked at in place", "look in place", "call", "vmmref.conformance.payloads:digest"),
    Point("the acknowledgement of a view is queued", "give back", "return", _CALLS + "fill_word32"),
    Point("a view of a revoked lease is looked at", "look in place", "return", "vmmref.conformance.payloads:digest", 2),
    Point("the view of a revoked lease is given back", "give back", "return", _READER + "release_borrowed", 2),
    Point("a view is given back", "give back", "return", _READER + "release_borrowed"),
    Point("the acknowledgement of a view has run", "acknowledge the view", "ran", "acknowledgement"),
    Point("the copy-out of a pack is queued", "read a pack", "return", _CALLS + "copy_on_device"),
    Point("the copy-out of a pack has run", "read a pack", "ran", "copy-out"),
    Point("a pack is acknowledged", "read a pack", "return", _CALLS + "fill_word32"),
    Point("another tensor of the pack is out", "read its sibling", "return", _PACKED + "reconstruct_on_target_device"),
    Point("a speaker has entered the table", "read for all", "return", _READER + "enter"),
    Point("a speaker has acknowledged for all", "acknowledge for all", "ran", "acknowledgement"),
    Point("the import is about to be dropped", "drop", "call", _IMPORT + "_end"),
    Point("the last queued work has ended", "drop", "return", _IMPORT + "synchronize"),
    Point("the rank's stream is destroyed", "drop", "return", _CALLS + "destroy_stream"),
    Point("the pool is unmapped", "drop", "return", _CALLS + "unmap_memory"),
    Point("its addresses are given back", "drop", "return", _CALLS + "free_address"),
    Point("the import is dropped", "drop", "return", "vmmref.imports:close_imports"),
)  # fmt: skip
"""Points of a consumer; each is reached by each of the three ranks."""

PRODUCER: tuple[Point, ...] = (
    Point("addresses are reserved", "construct", "return", _CALLS + "reserve_address"),
    Point("memory is created", "construct", "return", _CALLS + "create_memory"),
    Point("the memory is mapped", "construct", "return", _CALLS + "map_memory"),
    Point("access is allowed", "construct", "return", _CALLS + "allow_access"),
    Point("the zeroing of the words is queued", "construct", "return", _CALLS + "fill_bytes"),
    Point("the words are zero", "construct", "ran", "zeroing of the words"),
    Point("the memory has a descriptor", "construct", "return", _CALLS + "export_descriptor", handle_type=_POSIX),
    Point("the memory has a FABRIC handle", "construct", "return", _CALLS + "export_fabric", handle_type=_FABRIC),
    Point("the broker has its socket", "construct", "return", _BROKER + "__init__", handle_type=_POSIX),
    Point("the pool is made", "construct", "return", _POOL + "__init__"),
    Point("a process is watched for a rank", "watch", "return", "vmmref.reaper:Reaper.watch"),
    Point("a lease is taken", "publish", "return", _BOOK + "take"),
    Point("the copy is queued", "publish", "return", _CALLS + "copy_on_device"),
    Point("the ready store is queued", "publish", "return", _CALLS + "write_word"),
    Point("the copy has run, R is not ready", "publish", "ran", "copy"),
    Point("R is ready, the host has not seen it", "publish", "ran", "ready store"),
    Point("the lease may be dispatched", "publish", "return", _BOOK + "dispatch"),
    Point("the proxy is made", "publish", "return", _POOL + "wrap_tensor"),
    Point("the broker serves", "publish", "return", _BROKER + "start", handle_type=_POSIX),
    Point("the proxy has its wire form", "publish", "return", _PROXY + "__bytes__"),
    Point("a client is at the door", "publish", "call", _BROKER + "_accept", handle_type=_POSIX),
    Point("a client shows its token", "publish", "call", _BROKER + "_answer", handle_type=_POSIX),
    Point("the descriptor is sent", "publish", "return", _BROKER + "_answer", handle_type=_POSIX),
    Point("a lease is claimed for its revocation", "revoke", "return", _BOOK + "claim"),
    Point("the retire store of a revocation is queued", "revoke", "return", _PUBLISHER + "retire"),
    Point("the retire store of a revocation has run", "revoke", "ran", "retire store"),
    Point("a revoked lease is freed", "revoke", "return", _BOOK + "free"),
    Point("a lease is claimed under its views", "revoke in place", "return", _BOOK + "claim"),
    Point("a lease is retired under its views", "revoke in place", "ran", "retire store"),
    Point("a revoked lease is held for its views", "revoke in place", "return", _RECYCLER + "end_lease"),
    Point("a pack is copied in half", "publish a pack", "return", _CALLS + "copy_on_device"),
    Point("a pack is out", "publish a pack", "return", _POOL + "wrap_tensors"),
    Point("a lease is claimed for its cancellation", "cancel", "return", _BOOK + "claim"),
    Point("the retire store of a cancellation has run", "cancel", "ran", "retire store"),
    Point("a cancelled lease is freed", "cancel", "return", _BOOK + "free"),
    Point("a look is queued", "pass", "return", _CALLS + "copy_to_host"),
    Point("the words are looked at", "pass", "return", _RECYCLER + "look"),
    Point("leases are claimed", "pass", "return", _BOOK + "claim_where"),
    Point("one of the claimed leases has its retire store queued", "pass", "return", _PUBLISHER + "retire"),
    Point("every claimed lease has its retire store queued", "pass", "return", _RECYCLER + "claim"),
    Point("the first retire store has run", "pass", "ran", "retire store"),
    Point("the first lease is freed", "pass", "return", _BOOK + "free"),
    Point("newcomers are refused", "shut down", "return", "vmmref.life:Life.begin_close"),
    Point("every lease is claimed", "shut down", "return", _BOOK + "claim_all"),
    Point("the last lease is retired", "shut down", "ran", "retire store"),
    Point("nothing is queued any more", "shut down", "return", _POOL + "_drain"),
    Point("the broker has ended", "shut down", "return", _BROKER + "close", handle_type=_POSIX),
    Point("the memory is unmapped", "shut down", "return", _CALLS + "unmap_memory"),
    Point("the memory is released", "shut down", "return", _CALLS + "release_memory"),
    Point("the pool has ended", "shut down", "return", _POOL + "shutdown"),
)  # fmt: skip
"""Points of the producer."""
