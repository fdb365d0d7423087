"""A process with several writer threads that says what was acknowledged, until it is killed.

python -m tests.queue.paged.writer_process DIRECTORY FORCE_EVERY THREADS
"""

import os
import sys
import threading

from latchwork.queue.paged.queue import PagedQueue


def main():
    directory, force_every, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    queue = PagedQueue.open(directory, "q", page_size=2048, force_every=force_every)
    newest = dict.fromkeys(range(threads), -1)
    for entry in queue.read():
        thread, number = map(int, entry.data.split()[:2])
        newest[thread] = number
    consumer = queue.cursor("c")

    def write(thread):
        number = newest[thread] + 1
        while True:
            batch = [
                b"%d %d " % (thread, number + at) + bytes((number + at) * 37 % 300) for at in range(number % 3 + 1)
            ]
            if number % 50 == 20:
                batch[-1] += bytes(5000)
            if len(batch) == 1:
                queue.append(batch[0])
            else:
                queue.append_many(batch)
            number += len(batch)
            os.write(1, b"%d %d\n" % (thread, number - 1))

    for thread in range(threads):
        threading.Thread(target=write, args=(thread,), daemon=True).start()
    while True:
        entries = consumer.read(20, timeout=None)
        consumer.commit()
        os.write(1, b"c %d %d\n" % (entries[-1].page, entries[-1].position))


main()
