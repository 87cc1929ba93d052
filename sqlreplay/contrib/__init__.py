"""Adapters to other libraries. Each is a module of its own and is imported only by those who use it."""
