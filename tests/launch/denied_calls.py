"""Programs in which a system call fails with EPERM, as under the seccomp filter of a container."""

DENY = """
import ctypes, errno, struct
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
def deny(call):
    steps = struct.pack(
        "HBBI" * 4,
        *(0x20, 0, 0, 0),  # load the number of the call
        *(0x15, 0, 1, call),  # if it is another one, skip the next instruction
        *(0x06, 0, 0, 0x00050000 | errno.EPERM),  # fail with this error
        *(0x06, 0, 0, 0x7FFF0000),  # allow
    )
    code = ctypes.create_string_buffer(steps)
    program = Program(4, ctypes.cast(code, ctypes.c_void_p))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert prctl(22, 2, ctypes.byref(program)) == 0  # PR_SET_SECCOMP with a filter
"""
