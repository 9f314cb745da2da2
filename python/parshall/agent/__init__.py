"""Read-only questions for agents, each answered with its ledger: `tools` answers them, `server` offers them by MCP."""
