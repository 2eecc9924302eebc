"""What people see: functions of an anatomy or of a trace. The terminal's part is tables, labels, matrices, sheets."""
