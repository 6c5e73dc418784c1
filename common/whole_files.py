"""Small files, read whole and replaced atomically."""

from common.ports import Buffer, Disk, File

TEMPORARY_SUFFIX = ".tmp"


def write_fully(file: File, data: Buffer, position: int) -> None:
    """Write all of `data`, also when the disk takes it in pieces."""
    written = file.pwrite(data, position)
    if written < len(data):
        with memoryview(data) as view:
            while written < len(view):
                written += file.pwrite(view[written:], position + written)


def read_whole(disk: Disk, path: str) -> bytes | None:
    """The bytes of a small file; None when it does not exist."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        size = file.size()
        return file.pread(size, 0) if size else b""
    finally:
        file.close()


def write_whole(disk: Disk, path: str, data: Buffer) -> None:
    """Write and fsync a whole file. Its directory entry may not be durable yet."""
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        write_fully(file, data, 0)
        file.fsync()
    finally:
        file.close()


def replace_file(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Write a temporary file, fsync it, rename it over `name`, fsync the directory. Blocks: call it in a thread."""
    path = join(directory, name)
    temporary = path + TEMPORARY_SUFFIX
    write_whole(disk, temporary, data)
    disk.rename(temporary, path)
    disk.sync_directory(directory)


def join(directory: str, name: str) -> str:
    """A path below the disk's root; the root itself is ""."""
    return f"{directory}/{name}" if directory else name
