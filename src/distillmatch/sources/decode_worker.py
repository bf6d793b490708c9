"""A process that decodes images for another: paths come in, pixels go out, until nothing comes.

It is started as a program of its own, and not by `multiprocessing`, which would run the user's
script again. Each line of the standard input is a JSON list of paths; for each of them the answer
is four bytes and then the pixels, or, where the four bytes are not zero, so many bytes of text that
say what is wrong.
"""

import json
import struct
import sys
import warnings

from distillmatch.sources.images import ImageFile, decode_file

HEAD = struct.Struct("<I")


def main() -> None:
    """Decode what is asked for, to the side that is the first argument."""
    side = int(sys.argv[1])
    warnings.simplefilter("ignore")  # what is wrong with a file is in its answer
    for line in sys.stdin.buffer:
        for path in json.loads(line):
            result = decode_file(ImageFile.at(path), side)
            if isinstance(result, str):
                reason = (result or "unreadable").encode()
                sys.stdout.buffer.write(HEAD.pack(len(reason)) + reason)
            else:
                sys.stdout.buffer.write(HEAD.pack(0))
                sys.stdout.buffer.write(result.data)
            # After each image, so that it is known which one ended the process, if one does.
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
