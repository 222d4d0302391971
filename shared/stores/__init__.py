"""What all stores of files have in common: nothing planted, whole or not there, the kernel's locks, and eviction.

The feature cache, the cache of remote files, kept plans, remembered digests and the shelf of built batches are read and
written by several processes, any of which may be killed at any instruction. They share these rules. A link in the place
of a file is never followed (`own_files`). A file that has its name is whole: it was renamed into place, or every entry
in it has a checksum. Locks are the kernel's and end with their holder (`locks`), so nothing is ever unlocked by a
timeout. What a killed process left is found by the lock that it no longer holds, and the entries used longest ago go
first (`eviction`).
"""
