"""Every reader of what users give, under hostile bytes: a value of the right kind, or one line.

`targets` says how each reader is called, and with which real files a search begins. Hypothesis
calls them in the test suite (`tests/fuzz`), some hundred times each; atheris for minutes each, led
by which code is reached (`make fuzz`).
"""
