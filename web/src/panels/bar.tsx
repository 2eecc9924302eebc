// The filled part of a bar: a share of its track, 0 to 1.
export const Fill = ({ share, colour }: { share: number; colour?: string }) => (
  <i style={{ width: `${100 * Math.min(1, Math.max(0, share || 0))}%`, ...(colour && { background: colour }) }} />
);
