"""A file system in user space (FUSE) that shows a folder, read-only, and whose reads can stall.

It speaks the kernel's protocol itself (linux/fuse.h), so that it needs no library. Reads of a stalled file
get no answer until release(), as those of a network file system whose server does not answer. All other
requests are answered at once. The kernel keeps no page of the files.
"""
import ctypes
import errno
import os
import stat
import struct
import threading

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, BATCH_FORGET = (
    1, 2, 3, 14, 15, 17, 18, 25, 26, 27, 28, 29, 34, 36, 42)
DIRECT_IO = 1  # FOPEN_DIRECT_IO: each read is a request
VALID_S = 3600
IN, OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
LONGEST = 1 << 17  # of a read, as the kernel may ask for
DETACH = 2  # MNT_DETACH


def why_not():
    """Returns why no file system can be mounted by /dev/fuse, or an empty string."""
    try:
        with open("/dev/fuse", "rb+", buffering=0):
            return ""
    except OSError as error:
        return f"/dev/fuse cannot be used here: {error.strerror}"


class StallingFiles:
    """Mounts `folder` at `mounted` until close(). Raises OSError if that is not permitted."""

    def __init__(self, folder, mounted):
        self.mounted = mounted
        self.paths, self.nodes = [None, folder], {folder: 1}  # by the number of the node
        self.lock = threading.Lock()  # guards what follows
        self.stalled, self.pending, self.asked = set(), [], threading.Event()
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
        if self.libc.mount(b"stalling", os.fsencode(mounted), b"fuse", 1, options.encode()) != 0:  # 1: MS_RDONLY
            os.close(self.device)
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def stall(self, path):
        """Reads of the file at this path, relative to the folder, get no answer from now on."""
        with self.lock:
            self.stalled.add(os.path.join(self.paths[1], path))

    def release(self):
        """Answers the reads that wait, and all later ones."""
        with self.lock:
            self.stalled.clear()
            pending, self.pending = self.pending, []
        for unique, path, offset, size in pending:
            self.answer_read(unique, path, offset, size)

    def close(self):
        self.release()
        self.libc.umount2(os.fsencode(self.mounted), DETACH)
        self.thread.join(timeout=60)
        os.close(self.device)

    def serve(self):
        while True:
            try:
                request = os.read(self.device, LONGEST + 4096)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):  # ENOENT: the caller was interrupted
                    continue
                return  # ENODEV: unmounted
            _, code, unique, node, *_ = IN.unpack_from(request)
            try:
                self.handle(code, unique, node, request[IN.size:])
            except OSError as error:
                self.reply(unique, b"", error.errno)

    def reply(self, unique, body, error=0):
        try:
            os.write(self.device, OUT.pack(OUT.size + len(body), -error, unique) + body)
        except OSError as failed:
            if failed.errno not in (errno.ENOENT, errno.ENODEV):  # nobody waits for the answer any more
                raise

    def handle(self, code, unique, node, body):
        if code in (FORGET, BATCH_FORGET, INTERRUPT):
            return
        path = self.paths[node] if 0 < node < len(self.paths) else None
        if code == INIT:
            _, _, ahead, _ = struct.unpack_from("<IIII", body)
            self.reply(unique, struct.pack("<IIIIHHIIHHI28x", 7, 31, ahead, 0, 16, 12, LONGEST, 1, 0, 0, 0))
        elif code == LOOKUP:
            self.reply(unique, self.entry(os.path.join(path, os.fsdecode(body.rstrip(b"\0")))))
        elif code == GETATTR:
            self.reply(unique, struct.pack("<QII", VALID_S, 0, 0) + self.attributes(path))
        elif code in (OPEN, OPENDIR):
            self.reply(unique, struct.pack("<QII", 0, DIRECT_IO if code == OPEN else 0, 0))
        elif code == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            with self.lock:
                if path in self.stalled:
                    self.pending.append((unique, path, offset, size))
                    self.asked.set()
                    return
            self.answer_read(unique, path, offset, size)
        elif code == READDIR:
            _, offset, size = struct.unpack_from("<QQI", body)
            self.reply(unique, self.entries(path, offset, size))
        elif code == STATFS:
            self.reply(unique, struct.pack("<QQQQQIII28x", 0, 0, 0, 0, 0, 4096, 255, 4096))
        elif code in (RELEASE, RELEASEDIR, FLUSH, ACCESS):
            self.reply(unique, b"")
        else:
            self.reply(unique, b"", errno.ENOSYS)

    def answer_read(self, unique, path, offset, size):
        with open(path, "rb") as file:
            file.seek(offset)
            self.reply(unique, file.read(size))

    def node_of(self, path):
        if path not in self.nodes:
            self.nodes[path] = len(self.paths)
            self.paths.append(path)
        return self.nodes[path]

    def attributes(self, path):
        found = os.stat(path)
        mode = (stat.S_IFDIR | 0o555) if stat.S_ISDIR(found.st_mode) else (stat.S_IFREG | 0o444)
        return struct.pack("<6Q10I", self.node_of(path), found.st_size, (found.st_size + 511) // 512, 0, 0, 0, 0, 0, 0, mode, 1,
                           os.getuid(), os.getgid(), 0, 4096, 0)

    def entry(self, path):
        return struct.pack("<QQQQII", self.node_of(path) if os.path.exists(path) else 0, 0, VALID_S, VALID_S, 0, 0) + self.attributes(path)

    def entries(self, path, offset, size):
        """Returns the entries of a folder from number `offset` on, at most `size` bytes."""
        out, names = b"", sorted(os.listdir(path))
        for number, name in enumerate(names[offset:], offset + 1):
            inside = os.path.join(path, name)
            kind = 4 if os.path.isdir(inside) else 8  # DT_DIR, DT_REG
            encoded = os.fsencode(name)
            one = struct.pack("<QQII", self.node_of(inside), number, len(encoded), kind) + encoded
            one += b"\0" * (-len(one) % 8)
            if len(out) + len(one) > size:
                break
            out += one
        return out
