lock table {{.Table}} in exclusive mode;
