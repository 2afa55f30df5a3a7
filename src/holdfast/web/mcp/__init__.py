"""A Model Context Protocol server for AI agents. Requires the extra `holdfast[mcp]`.

`tools.py` has the tools: operations of the REST API, and the tasks of the app. `server.py` answers requests, and
`http.py` serves them over HTTP. `holdfast mcp` serves one client over standard input and output, or many over HTTP.
"""
