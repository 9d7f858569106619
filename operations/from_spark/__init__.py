"""Spark queries: following them (`attach`), converting them to stages (`adopt`), and reading their `checkpoint`."""
