"""The pieces that every package uses: errors, command lines, console, files, processes, charts."""
