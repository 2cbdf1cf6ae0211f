"""AutoSync inside training frameworks: a file for each, which imports that framework. These files
import the runtime; nothing else of autosync imports them."""
