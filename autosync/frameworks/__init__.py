"""AutoSync inside training frameworks, a file for each, imported only where that framework is. May
import the runtime; nothing of autosync imports this room."""
