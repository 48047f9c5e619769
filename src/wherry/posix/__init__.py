"""What the operating system makes hard, once each: forks, threads at the end of a process, atomic files, copies."""
