"""Output for people: functions of an anatomy or a trace. Terminal screens, the page, its server, and notebooks."""
