select count(*), count(*) filter (where (x.a).duplicate)
from (select {{.Append "m.e"}} as a from (select k.e from pg_temp.keyline_moving k{{if .To}} where k.place > {{.From}} and k.place <= {{.To}}{{end}} order by k.place) m) x;
