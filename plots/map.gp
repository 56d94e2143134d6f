# Who owns which part of the pool over time, one panel a trial: requests in seven colours by number,
# unwritten slots pale, cached grey, free white. Reads <base>.csv (columns of a map file, panel_id
# first); see style.gp.
#   base title, array panel_names, n_panels, arrays panel_tops (slots) panel_ends (s) panel_rows
n_series = 4
n_legend = 8
tick_height = 66.0
y_label = "slot of the pool, thousands"
load scripts."/style.gp"

shade(state, owner) = state eq "cached" ? 0xB0B0B0 : state eq "unwritten" ? 0xF3E3A1 : owner_colours[1 + int(owner) % 7]
array owner_colours[7] = [0x0072B2, 0xD55E00, 0x009E73, 0xCC79A7, 0x56B4E9, 0xE69F00, 0x404040]

do for [d = 1:2] {
    @device
    set multiplot
    @headline
    do for [p = 1:n_panels] {
        y_top = panel_tops[p]
        @place
        unset grid
        set xlabel x_label offset 0,0.4
        set xrange [0:panel_ends[p]]
        set xtics nomirror out 0,round_step(panel_ends[p])
        wide = panel_ends[p] / panel_rows[p]
        high = panel_tops[p] / panel_cells[p]
        mine(v) = column("panel_id") == p ? v : NaN
        plot base.".csv" using (mine(column("time_s") + wide / 2)):(column("slot") / 1000.0 + high / 2):(wide / 2):(high / 2):(shade(stringcolumn("state"), column("owner"))) \
             with boxxyerror fill solid 1.0 noborder lc rgb variable
        unset label
    }
    @strip_start
    plot NaN with boxes fill solid 1.0 noborder lc rgb "#0072B2" title "a request's tokens (colour: its number)", \
         NaN with boxes fill solid 1.0 noborder lc rgb "#F3E3A1" title "handed out, not written", \
         NaN with boxes fill solid 1.0 noborder lc rgb "#B0B0B0" title "cached", \
         NaN with boxes fill solid 0.0 border lc rgb "#808080" title "free"
    unset multiplot
    unset output
}
