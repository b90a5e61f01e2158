"""Duties that go on by themselves beside the write path, one file each."""
