"""SGLang servers: how they are installed, started and watched."""
